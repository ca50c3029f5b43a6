"""The choice of rows for the report: examples of each check, and the worst rows in full."""

from dataclasses import dataclass, field
from typing import Any

from pipeline.formats.schema.findings import Finding
from pipeline.stages.audit.inputs.batch import Batch

EXAMPLES = 20
"""Findings of each check that are kept as examples."""
WORST = 16
"""Worst rows that are kept in full, in addition to the first row of each check."""
_WEIGHTS = {"error": 10000, "warn": 100, "info": 1}


@dataclass
class Sample:
    """A row in full, with its findings."""

    score: int
    row: int
    fields: dict[str, Any]
    """Values by column of schema/tokens.py."""
    findings: list[Finding]


@dataclass
class Samples:
    """A bounded choice of rows, the same for the same rows."""

    examples: dict[str, list[Finding]] = field(default_factory=dict)
    first: dict[str, Sample] = field(default_factory=dict)
    """First row with a finding of each check."""
    worst: list[Sample] = field(default_factory=list)

    def add(self, batch: Batch, findings: list[tuple[int, Finding]]) -> None:
        """Add the findings about a batch."""
        self.add_examples(findings)
        by_row: dict[int, list[Finding]] = {}
        for row, finding in findings:
            by_row.setdefault(row, []).append(finding)
        for row, row_findings in by_row.items():
            score = sum(_WEIGHTS[finding.severity] for finding in row_findings)
            new_checks = [finding.check for finding in row_findings if finding.check not in self.first]
            if new_checks or len(self.worst) < WORST or score > self.worst[-1].score:
                sample = Sample(score, batch.start + row, batch.table.slice(row, 1).to_pylist()[0], row_findings)
                self.first.update(dict.fromkeys(new_checks, sample))
                self.worst = sorted([*self.worst, sample], key=lambda kept: (-kept.score, kept.row))[:WORST]

    def merge(self, later: "Samples") -> None:
        """Add the samples of the rows that come next, with the same result as adding those rows here."""
        for findings in later.examples.values():
            self.add_examples([(0, finding) for finding in findings])
        for check, sample in later.first.items():
            self.first.setdefault(check, sample)
        self.worst = sorted([*self.worst, *later.worst], key=lambda kept: (-kept.score, kept.row))[:WORST]

    def add_examples(self, findings: list[tuple[int, Finding]]) -> None:
        """Keep the first findings of each check."""
        for _row, finding in findings:
            examples = self.examples.setdefault(finding.check, [])
            if len(examples) < EXAMPLES:
                examples.append(finding)

    def rows(self) -> list[Sample]:
        """Return the rows to show, each once, the worst first."""
        chosen = {sample.row: sample for sample in [*self.worst, *self.first.values()]}
        return sorted(chosen.values(), key=lambda sample: (-sample.score, sample.row))
