"""One pass over the rows, every check that is on, findings as they come; then the checks that compare rows; then the decision about each row."""

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
"""Row and what a check has against it."""
_LONGEST = 400
"""Characters of a message: what a provider said may be of any length."""
_LATE = 1024
"""Findings of checks across rows that are handed on at a time."""
_PLACES = {check.name: place for place, check in enumerate(CHECKS)}


@dataclass
class CheckCount:
    """How often a check complained."""

    findings: int = 0
    rows: int = 0


@dataclass
class AuditTally:
    """What remains of all rows: a few bytes of each. Every row is in exactly one of `accepted` and `left_out`."""

    checks: dict[str, CheckCount] = field(default_factory=lambda: {check.name: CheckCount() for check in CHECKS})
    stats: Stats = field(default_factory=Stats)
    samples: Samples = field(default_factory=Samples)
    failed: NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, dtype=np.int16))
    """First failed check of each row, by its place in the registry; -1 for none."""
    left_out: Counter[str] = field(default_factory=Counter)
    rows_with_error: int = 0
    """Among rows that hold ids."""
    keep: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """Whether training may use each row, in row order."""

    @property
    def rows(self) -> int:
        """Rows read."""
        return self.stats.rows

    @property
    def accepted(self) -> int:
        """Rows that training may use."""
        return int(self.keep.sum())


def active(section: AuditSection) -> Iterator[tuple[RowCheck | DatasetCheck, CheckSection]]:
    """Give the checks that are on, with their settings, in the order of the registry."""
    for check in CHECKS:
        settings = section.check(check.name)
        if settings.severity != "off":
            yield check, settings


def to_finding(check: str, settings: CheckSection, complaint: Complaint, row_id: str) -> Finding:
    """Complaint as a line of findings.parquet."""
    assert settings.severity != "off"
    message = complaint.message if len(complaint.message) <= _LONGEST else f"{complaint.message[:_LONGEST]}\u2026"
    return Finding(row_id, check, settings.severity, message, complaint.position)


def findings_of(batch: Batch, section: AuditSection) -> list[RowFinding]:
    """Findings of the checks of single rows about a batch, each with its row in the batch, in the order of rows, then checks."""
    found = [
        (complaint.row, to_finding(check.name, settings, complaint, batch.ids[complaint.row]))
        for check, settings in active(section)
        if isinstance(check, RowCheck)
        for complaint in check.run(batch, settings)
    ]
    return sorted(found, key=lambda item: item[0])


@dataclass
class BatchResult:
    """What one batch adds, ready to be merged in row order; the batch itself is not kept."""

    found: list[RowFinding]
    """With rows counted in the batch."""
    stats: Stats
    samples: Samples
    sketch: pa.RecordBatch
    """What the checks across rows keep of the batch's rows."""


def sketch_of(batch: Batch, section: AuditSection) -> pa.RecordBatch:
    """What the checks across rows keep of a batch."""
    facts = {
        check.column: check.facts(batch, settings)
        for check, settings in active(section)
        if isinstance(check, DatasetCheck)
    }
    return to_sketch(batch.table.column("id"), facts)


def examine(batch: Batch, section: AuditSection) -> BatchResult:
    """Do everything that one batch alone can tell: pure, so that batches may be examined anywhere, in any order."""
    found = findings_of(batch, section)
    stats, samples = Stats(), Samples()
    stats.add(batch, found)
    samples.add(batch, found)
    return BatchResult(found, stats, samples, sketch_of(batch, section))


def gather(parts: Iterable[BatchResult], write: Write, keep: Callable[[pa.RecordBatch], None]) -> AuditTally:
    """Merge parts, in row order; hand findings to ``write`` as rows of schema/findings.py, and what rows are compared by to ``keep``."""
    tally, failed = AuditTally(), []
    for part in parts:
        write([finding.to_row() for _row, finding in part.found])
        keep(part.sketch)
        failed.append(np.full(part.stats.rows, -1, dtype=np.int16))
        _count(tally, part.found, failed[-1])
        tally.samples.merge(part.samples)
        tally.stats.merge(part.stats)
    tally.failed = np.concatenate([tally.failed, *failed])
    return tally


def compare(tally: AuditTally, sketches: Sequence[Sketch], section: AuditSection, write: Write) -> None:
    """Run the checks across rows over the rows of all sketches, the audited one last: complaints about the others' rows are not ours to make."""
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
        while some := list(islice(complaints, _LATE)):
            found = [
                (complaint.row - before, to_finding(check.name, settings, complaint, names(complaint.row)))
                for complaint in some
            ]
            write([finding.to_row() for _row, finding in found])
            _count(tally, found, tally.failed)
            tally.samples.add_examples(found)


def _count(tally: AuditTally, found: list[RowFinding], failed: NDArray[np.int16]) -> None:
    """Count findings, and note in ``failed`` the rows' first errors; no check's findings about a row may come in two calls."""
    for row, finding in found:
        tally.checks[finding.check].findings += 1
        if finding.severity == "error" and failed[row] < 0:
            failed[row] = _PLACES[finding.check]
    for check, rows in Counter(check for check, _row in {(finding.check, row) for row, finding in found}).items():
        tally.checks[check].rows += rows


def decide(tally: AuditTally, section: AuditSection) -> None:
    """Accept each row or count why not; rows of the same status, reason and failed check at once."""
    pairs, standing = tally.stats.standing()
    places = len(_PLACES) + 1
    kinds, firsts, kind_of, counts = np.unique(
        standing * places + tally.failed + 1, return_index=True, return_inverse=True, return_counts=True
    )
    taken = np.zeros(len(kinds), dtype=np.bool_)
    for kind in np.argsort(firsts).tolist():
        pair, place = divmod(int(kinds[kind]), places)
        status, reason = pairs[pair]
        why = left_out(status, reason, list(_PLACES)[place - 1] if place else None, section.gate.admit)
        taken[kind] = why is None
        tally.rows_with_error += int(counts[kind]) if status != "reject" and place else 0
        if why is not None:
            tally.left_out[counted_name(tally.left_out, why)] += int(counts[kind])
    tally.keep = taken[kind_of]
