"""Exact rates of rebuilt ids, with their intervals, for each group of rows.

This module loads little, so that a build without true ids has next to nothing to load.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

Match = Literal["exact", "segmentation", "text", "none"]
"""The relation of rebuilt ids to the true ones.

- exact: every id is equal
- segmentation: the special tokens and the bytes between them are equal
- text: special tokens or bytes differ
- none: no ids were rebuilt
"""

Z = 1.959963984540054
"""Normal quantile of a two-sided 95 % interval."""

MAX_EXAMPLES = 8


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a rate (Wilson 1927, score interval); (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    rate, square = successes / trials, Z * Z
    centre = (rate + square / (2 * trials)) / (1 + square / trials)
    half = Z * math.sqrt(rate * (1 - rate) / trials + square / (4 * trials * trials)) / (1 + square / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(slots=True)
class Scores:
    """Counts of matches, by group."""

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Maps (dimension, group, match) to a number of rows."""
    examples: list[dict[str, Any]] = field(default_factory=list)
    rows: int = 0

    def add(self, groups: dict[str, str], match: Match, example: dict[str, Any] | None) -> None:
        """Count a row in each of its groups."""
        self.rows += 1
        for dimension, group in (("all", "all"), *groups.items()):
            self.counts[dimension, group, match] += 1
        if example is not None and len(self.examples) < MAX_EXAMPLES:
            self.examples.append(example)

    def document(self) -> dict[str, Any]:
        """Return each group with its counts, its exact rate and the interval of the rate."""
        document: dict[str, Any] = {}
        for dimension, group in sorted({key[:2] for key in self.counts}):
            document.setdefault(dimension, {})[group] = self._group(dimension, group)
        overall = document.pop("all", {}).get("all", {"rows": 0})
        return {**overall, **{f"by_{name}": groups for name, groups in document.items()}, "differences": self.examples}

    def _group(self, dimension: str, group: str) -> dict[str, Any]:
        counts = {match: self.counts[dimension, group, match] for match in ("exact", "segmentation", "text", "none")}
        rows = sum(counts.values())
        low, high = wilson(counts["exact"], rows)
        return {
            "rows": rows,
            **counts,
            "exact_rate": round(counts["exact"] / rows, 6),
            "exact_interval": [round(low, 6), round(high, 6)],
        }
