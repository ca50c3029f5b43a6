"""Rebuilt ids against the true ones: equal, the same text cut otherwise, or another text."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.answers.emitted import spans_of
from pipeline.answers.formats import Thinking, format_of
from pipeline.answers.markers import Markers
from pipeline.schema.target import TargetRecord
from pipeline.tokens import Tokenizer

Verdict = Literal["exact", "segmentation", "text", "none"]
"""exact: every id equal; segmentation: the same special tokens and bytes; text: other bytes or special tokens; none: no ids were rebuilt."""

Z = 1.959963984540054
"""Normal quantile of a two-sided 95 % interval."""

MAX_EXAMPLES = 8
AROUND = 4
"""Tokens shown on each side of a first difference."""


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """95 % interval of a rate (Wilson 1927, score interval); (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    rate, square = successes / trials, Z * Z
    centre = (rate + square / (2 * trials)) / (1 + square / trials)
    half = Z * math.sqrt(rate * (1 - rate) / trials + square / (4 * trials * trials)) / (1 + square / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


class Judge:
    """Compares rows of one target."""

    def __init__(self, record: TargetRecord, tokenizer: Tokenizer) -> None:
        self._record = record
        self._tokenizer = tokenizer
        self._markers = Markers(record)
        self.thinking = format_of(record).thinking

    def verdict(self, rebuilt: Sequence[int] | None, truth: Sequence[int]) -> Verdict:
        """How rebuilt ids relate to the true ones."""
        if not rebuilt:
            return "none"
        if list(rebuilt) == list(truth):
            return "exact"
        return "segmentation" if self._tokenizer.spelling(rebuilt) == self._tokenizer.spelling(truth) else "text"

    def canonical(self, truth: Sequence[int], thinking: Thinking) -> bool:
        """Whether the model cut its text as the tokenizer does, span by span: only then can re-encoding be exact."""
        for _, start, end in spans_of(truth, self._record, self._markers, thinking).spans:
            ids = list(truth[start:end])
            if end - start == 1 and ids[0] in self._tokenizer.special_texts:
                continue
            try:
                text = self._tokenizer.decode_bytes(ids).decode()
            except UnicodeDecodeError:
                return False
            if self._tokenizer.encode(text) != ids:
                return False
        return True

    def first_difference(self, rebuilt: Sequence[int], truth: Sequence[int]) -> dict[str, Any]:
        """Where two sequences part, and what stands there, decoded."""
        position = next((n for n, (a, b) in enumerate(zip(rebuilt, truth, strict=False)) if a != b), min(len(rebuilt), len(truth)))
        window = slice(max(0, position - AROUND), position + AROUND)
        return {
            "position": position,
            "rebuilt": [self._tokenizer.show(token) for token in rebuilt[window]],
            "true": [self._tokenizer.show(token) for token in truth[window]],
        }


@dataclass(slots=True)
class Scores:
    """Counts of verdicts, by group."""

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """(dimension, group, verdict) to rows."""
    examples: list[dict[str, Any]] = field(default_factory=list)
    rows: int = 0

    def take(self, groups: dict[str, str], verdict: Verdict, example: dict[str, Any] | None) -> None:
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
        counts = {verdict: self.counts[dimension, group, verdict] for verdict in ("exact", "segmentation", "text", "none")}
        rows = sum(counts.values())
        low, high = wilson(counts["exact"], rows)
        return {"rows": rows, **counts, "exact_rate": round(counts["exact"] / rows, 6), "exact_interval": [round(low, 6), round(high, 6)]}
