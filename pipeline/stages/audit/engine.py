"""The run of the checks: one pass over the rows, the comparison of rows, the decision on each row."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.formats.schema.findings import Finding
from pipeline.stages.audit.checks.catalog import CHECKS
from pipeline.stages.audit.checks.check import Complaint, DatasetCheck, RowCheck
from pipeline.stages.audit.config import AuditSection, CheckSection
from pipeline.stages.audit.decision.admission import left_out
from pipeline.stages.audit.decision.stats import Stats, counted_name
from pipeline.stages.audit.inputs.batch import Batch
from pipeline.stages.audit.page.samples import Samples
from pipeline.stages.audit.sketch import RowNames, Sketch, facts_of, to_sketch

Write = Callable[[list[dict[str, Any]]], None]
RowFinding = tuple[int, Finding]
"""Index of a row, and a finding about it."""
_LONGEST = 400
"""Most characters of a message, since a provider's text in it may have any length."""
_CHUNK = 1024
"""Findings of a dataset check that are written at a time."""
_PLACES = {check.name: place for place, check in enumerate(CHECKS)}
"""Place of each check in the catalog."""


@dataclass
class CheckCount:
    """Numbers of findings of one check, and of rows that have one."""

    findings: int = 0
    rows: int = 0


@dataclass
class AuditTally:
    """Counts and facts over all rows, a few bytes of each. `accepted` and `left_out` together count every row once."""

    checks: dict[str, CheckCount] = field(default_factory=lambda: {check.name: CheckCount() for check in CHECKS})
    stats: Stats = field(default_factory=Stats)
    samples: Samples = field(default_factory=Samples)
    failed: NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, dtype=np.int16))
    """[rows]: place in the catalog of the first check that found an error in the row; -1 for none."""
    left_out: Counter[str] = field(default_factory=Counter)
    rows_with_error: int = 0
    """Counts rows that hold ids only; a rejected row holds none."""
    keep: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """[rows]: whether training may use the row."""

    @property
    def rows(self) -> int:
        """Number of rows read."""
        return self.stats.rows

    @property
    def accepted(self) -> int:
        """Number of rows that training may use."""
        return int(self.keep.sum())


def active(section: AuditSection) -> Iterator[tuple[RowCheck | DatasetCheck, CheckSection]]:
    """Yield the checks that are not switched off, with their settings, in the order of the catalog."""
    for check in CHECKS:
        settings = section.check(check.name)
        if settings.severity != "off":
            yield check, settings


def to_finding(check: str, settings: CheckSection, complaint: Complaint, row_id: str) -> Finding:
    """Make a complaint a row of findings.parquet."""
    assert settings.severity != "off"
    message = complaint.message if len(complaint.message) <= _LONGEST else f"{complaint.message[:_LONGEST]}\u2026"
    return Finding(row_id, check, settings.severity, message, complaint.position)


def findings_of(batch: Batch, section: AuditSection) -> list[RowFinding]:
    """Run the row checks on a batch; return findings with rows counted in the batch, by row and then by check."""
    found = [
        (complaint.row, to_finding(check.name, settings, complaint, batch.ids[complaint.row]))
        for check, settings in active(section)
        if isinstance(check, RowCheck)
        for complaint in check.run(batch, settings)
    ]
    return sorted(found, key=lambda item: item[0])


@dataclass
class BatchResult:
    """The result of examining one batch, to be merged in row order; the batch itself can be freed."""

    findings: list[RowFinding]
    """Rows are counted in the batch."""
    stats: Stats
    samples: Samples
    sketch: pa.RecordBatch
    """Facts for the dataset checks, in the columns of schema/sketch.py."""


def sketch_of(batch: Batch, section: AuditSection) -> pa.RecordBatch:
    """Return the facts of a batch for the dataset checks, in the columns of schema/sketch.py."""
    facts = {
        check.column: check.facts(batch, settings)
        for check, settings in active(section)
        if isinstance(check, DatasetCheck)
    }
    return to_sketch(batch.table.column("id"), facts)


def examine(batch: Batch, section: AuditSection) -> BatchResult:
    """Do all work that needs one batch alone. Pure, so that any process may examine batches in any order."""
    findings = findings_of(batch, section)
    stats, samples = Stats(), Samples()
    stats.add(batch, findings)
    samples.add(batch, findings)
    return BatchResult(findings, stats, samples, sketch_of(batch, section))


def gather(
    results: Iterable[BatchResult], write_findings: Write, write_sketch: Callable[[pa.RecordBatch], None]
) -> AuditTally:
    """Merge results, which come in row order, and write their findings and sketches on the way."""
    tally, failed = AuditTally(), []
    for result in results:
        write_findings([finding.to_row() for _row, finding in result.findings])
        write_sketch(result.sketch)
        failed.append(np.full(result.stats.rows, -1, dtype=np.int16))
        _count(tally, result.findings, failed[-1])
        tally.samples.merge(result.samples)
        tally.stats.merge(result.stats)
    tally.failed = np.concatenate([tally.failed, *failed])
    return tally


def compare(tally: AuditTally, sketches: Sequence[Sketch], section: AuditSection, write_findings: Write) -> None:
    """Run the dataset checks over the rows of all sketches, and write the findings about the last, the audited one.

    The other sketches are of datasets that this audit does not judge, so complaints about their rows are dropped.
    """
    names = RowNames(sketches)
    before = sum(sketch.rows for sketch in sketches[:-1])
    for check, settings in active(section):
        if not isinstance(check, DatasetCheck):
            continue
        complaints = (
            complaint
            for complaint in check.run(facts_of(sketches, check.column), names, settings)
            if complaint.row >= before
        )
        while chunk := list(islice(complaints, _CHUNK)):
            findings = [
                (complaint.row - before, to_finding(check.name, settings, complaint, names(complaint.row)))
                for complaint in chunk
            ]
            write_findings([finding.to_row() for _row, finding in findings])
            _count(tally, findings, tally.failed)
            tally.samples.add_examples(findings)


def _count(tally: AuditTally, findings: list[RowFinding], failed: NDArray[np.int16]) -> None:
    """Count findings, and write the first error of each row to ``failed`` [rows].

    All findings of one check about one row must come in the same call, or the row would count twice.
    """
    for row, finding in findings:
        tally.checks[finding.check].findings += 1
        if finding.severity == "error" and failed[row] < 0:
            failed[row] = _PLACES[finding.check]
    for check, _row in {(finding.check, row) for row, finding in findings}:
        tally.checks[check].rows += 1


def decide(tally: AuditTally, section: AuditSection) -> None:
    """Accept each row, or count why it is left out; rows of equal status, reason and failed check in one step."""
    pairs, pair_of = tally.stats.status_pairs()
    places = len(_PLACES) + 1
    kinds, firsts, kind_of, counts = np.unique(
        pair_of * places + tally.failed + 1, return_index=True, return_inverse=True, return_counts=True
    )
    accepted = np.zeros(len(kinds), dtype=np.bool_)
    for kind in np.argsort(firsts).tolist():
        pair, place = divmod(int(kinds[kind]), places)
        status, reason = pairs[pair]
        failed_check = list(_PLACES)[place - 1] if place else None
        cause = left_out(status, reason, failed_check, section.gate.admit)
        accepted[kind] = cause is None
        if status != "reject" and failed_check is not None:
            tally.rows_with_error += int(counts[kind])
        if cause is not None:
            tally.left_out[counted_name(tally.left_out, cause)] += int(counts[kind])
    tally.keep = accepted[kind_of]
