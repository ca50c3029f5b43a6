"""How often rebuilt ids were the true ones, by group, each rate with its interval. Light, so that a build without truths has next to nothing to load."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

Match = Literal["exact", "segmentation", "text", "none"]
"""exact: every id equal; segmentation: the same special tokens and bytes; text: other bytes or special tokens; none: no ids were rebuilt."""

Z = 1.959963984540054
"""Normal quantile of a two-sided 95 % interval."""

MAX_EXAMPLES = 8


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """95 % interval of a rate (Wilson 1927, score interval); (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    rate, square = successes / trials, Z * Z
    centre = (rate + square / (2 * trials)) / (1 + square / trials)
    half = Z * math.sqrt(rate * (1 - rate) / trials + square / (4 * trials * trials)) / (1 + square / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(slots=True)
class Scores:
    """Counts of verdicts, by group."""

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """(dimension, group, verdict) to rows."""
    examples: list[dict[str, Any]] = field(default_factory=list)
    rows: int = 0

    def take(self, groups: dict[str, str], verdict: Match, example: dict[str, Any] | None) -> None:
        """Count a row in each of its groups."""
        self.rows += 1
        for dimension, group in (("all", "all"), *groups.items()):
            self.counts[dimension, group, verdict] += 1
        if example is not None and len(self.examples) < MAX_EXAMPLES:
            self.examples.append(example)

    def document(self) -> dict[str, Any]:
        """Every group with its counts, exact rate and interval."""
        document: dict[str, Any] = {}
        for dimension, group in sorted({key[:2] for key in self.counts}):
            document.setdefault(dimension, {})[group] = self._group(dimension, group)
        overall = document.pop("all", {}).get("all", {"rows": 0})
        return {**overall, **{f"by_{name}": groups for name, groups in document.items()}, "differences": self.examples}

    def _group(self, dimension: str, group: str) -> dict[str, Any]:
        counts = {
            verdict: self.counts[dimension, group, verdict] for verdict in ("exact", "segmentation", "text", "none")
        }
        rows = sum(counts.values())
        low, high = wilson(counts["exact"], rows)
        return {
            "rows": rows,
            **counts,
            "exact_rate": round(counts["exact"] / rows, 6),
            "exact_interval": [round(low, 6), round(high, 6)],
        }
