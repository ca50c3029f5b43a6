"""One pass over the rows: every check that is on, the findings in row order, and what the summary counts."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pipeline.audit.admit import left_out
from pipeline.audit.batch import Batch
from pipeline.audit.checks import CHECKS
from pipeline.audit.config import AuditSection
from pipeline.schema.findings import Finding


@dataclass
class CheckCount:
    """How often a check complained."""

    findings: int = 0
    rows: int = 0


@dataclass
class Tally:
    """Counts over all rows; every row is in exactly one of `accepted` and `left_out`."""

    rows: int = 0
    status: Counter[str] = field(default_factory=Counter)
    evidence: Counter[str] = field(default_factory=Counter)
    checks: dict[str, CheckCount] = field(default_factory=dict)
    rows_with_error: int = 0
    """Among rows that hold ids."""
    accepted: int = 0
    accepted_tokens: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    keep: list[bool] = field(default_factory=list)
    """Whether training may use each row, in row order."""


def findings_of(batch: Batch, section: AuditSection) -> list[tuple[int, Finding]]:
    """Findings of every check that is on, each with its row in the batch, in the order of rows, then checks."""
    found: list[tuple[int, int, Finding]] = []
    for order, check in enumerate(CHECKS.values()):
        settings = section.check(check.name)
        if settings.severity == "off":
            continue
        for complaint in check.run(batch, settings):
            finding = Finding(batch.ids[complaint.row], check.name, settings.severity, complaint.message, complaint.position)
            found.append((complaint.row, order, finding))
    found.sort(key=lambda item: item[:2])
    return [(row, finding) for row, _order, finding in found]


def audit(batches: Iterator[Batch], section: AuditSection, write: Callable[[list[dict[str, Any]]], None]) -> Tally:
    """Run the checks over all rows; hand findings to ``write`` as rows of schema/findings.py."""
    tally = Tally(checks={name: CheckCount() for name in CHECKS})
    for batch in batches:
        findings = findings_of(batch, section)
        write([finding.to_row() for _row, finding in findings])
        count(tally, batch, section, findings)
    return tally


def count(tally: Tally, batch: Batch, section: AuditSection, findings: list[tuple[int, Finding]]) -> None:
    """Add a batch to the tally."""
    failed: dict[int, str] = {}
    for row, finding in findings:
        tally.checks[finding.check].findings += 1
        if finding.severity == "error":
            failed.setdefault(row, finding.check)
    for _row, check in {(row, finding.check) for row, finding in findings}:
        tally.checks[check].rows += 1
    tally.rows += batch.size
    tally.status.update(batch.column("status"))
    tally.evidence.update(value or "none" for value in batch.column("evidence"))
    lengths = batch.completion.lengths.tolist()
    for row, (status, reason, length) in enumerate(zip(batch.column("status"), batch.column("reason"), lengths, strict=True)):
        why = left_out(status, reason, failed.get(row), section.gate.admit)
        tally.keep.append(why is None)
        tally.rows_with_error += status != "reject" and row in failed
        if why is None:
            tally.accepted += 1
            tally.accepted_tokens += length
        else:
            tally.left_out[why] += 1
