"""What the report shows of single rows: examples of each check, and the worst rows whole."""

from dataclasses import dataclass, field
from typing import Any

from pipeline.formats.schema.findings import Finding
from pipeline.stages.audit.inputs.batch import Batch

EXAMPLES = 20
"""Examples kept of each check."""
WORST = 16
"""Worst rows kept whole, besides the first row of each check."""
_WEIGHTS = {"error": 10000, "warn": 100, "info": 1}


@dataclass
class Sample:
    """A row with everything that the audit knows of it."""

    score: int
    row: int
    fields: dict[str, Any]
    """In the columns of schema/tokens.py."""
    findings: list[Finding]


@dataclass
class Samples:
    """A bounded choice of rows, the same for the same rows."""

    examples: dict[str, list[Finding]] = field(default_factory=dict)
    first: dict[str, Sample] = field(default_factory=dict)
    """First row that a check complained about."""
    worst: list[Sample] = field(default_factory=list)

    def add(self, batch: Batch, found: list[tuple[int, Finding]]) -> None:
        """Look at a batch's findings."""
        self.add_examples(found)
        by_row: dict[int, list[Finding]] = {}
        for row, finding in found:
            by_row.setdefault(row, []).append(finding)
        for row, findings in by_row.items():
            score = sum(_WEIGHTS[finding.severity] for finding in findings)
            news = [finding.check for finding in findings if finding.check not in self.first]
            if news or len(self.worst) < WORST or score > self.worst[-1].score:
                sample = Sample(score, batch.start + row, batch.table.slice(row, 1).to_pylist()[0], findings)
                self.first.update(dict.fromkeys(news, sample))
                self.worst = sorted([*self.worst, sample], key=lambda kept: (-kept.score, kept.row))[:WORST]

    def merge(self, later: "Samples") -> None:
        """Take in the samples of rows that come after; the same as if those rows had been added here."""
        for findings in later.examples.values():
            self.add_examples([(0, finding) for finding in findings])
        for check, sample in later.first.items():
            self.first.setdefault(check, sample)
        self.worst = sorted([*self.worst, *later.worst], key=lambda kept: (-kept.score, kept.row))[:WORST]

    def add_examples(self, found: list[tuple[int, Finding]]) -> None:
        """Keep the first few findings of each check."""
        for _row, finding in found:
            kept = self.examples.setdefault(finding.check, [])
            if len(kept) < EXAMPLES:
                kept.append(finding)

    def rows(self) -> list[Sample]:
        """Rows to show, each once: the worst first, then the first row of each check."""
        chosen = {sample.row: sample for sample in [*self.worst, *self.first.values()]}
        return sorted(chosen.values(), key=lambda sample: (-sample.score, sample.row))
