"""One pass over the rows: every check that is on, findings as they come, and the few bytes of each row that outlive its batch."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.admit import left_out
from pipeline.audit.batch import Batch
from pipeline.audit.checks.catalog import CHECKS, Across, Check, Complaint
from pipeline.audit.config import AuditSection, CheckSection
from pipeline.audit.samples import Samples
from pipeline.audit.stats import Stats, known
from pipeline.schema.findings import Finding

Write = Callable[[list[dict[str, Any]]], None]
RowFinding = tuple[int, Finding]
"""Row and what a check has against it."""
_LONGEST = 400
"""Characters of a message: what a provider said may be of any length."""
_LATE = 1024
"""Findings of checks across rows that are handed on at a time."""


@dataclass
class CheckCount:
    """How often a check complained."""

    findings: int = 0
    rows: int = 0


@dataclass
class Tally:
    """What remains of all rows; every row is in exactly one of `accepted` and `left_out`."""

    checks: dict[str, CheckCount] = field(default_factory=lambda: {name: CheckCount() for name in CHECKS})
    stats: Stats = field(default_factory=Stats)
    samples: Samples = field(default_factory=Samples)
    failed: dict[int, str] = field(default_factory=dict)
    """First failed check of each row with an error."""
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


def active(section: AuditSection) -> Iterator[tuple[Check | Across, CheckSection]]:
    """Give the checks that are on, with their settings, in the order of the registry."""
    for check in CHECKS.values():
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
        if isinstance(check, Check)
        for complaint in check.run(batch, settings)
    ]
    return sorted(found, key=lambda item: item[0])


@dataclass
class Part:
    """What one batch adds, ready to be merged in row order; the batch itself is not kept."""

    start: int
    found: list[RowFinding]
    """With rows counted in the batch."""
    stats: Stats
    samples: Samples
    facts: dict[str, NDArray[Any]]
    """What each check across rows keeps of the batch's rows."""
    ids: Any
    """Arrow column of the rows' ids."""


@dataclass
class Compared:
    """Rows of another dataset, that rows may not repeat."""

    name: str
    facts: dict[str, NDArray[Any]]
    ids: Any


def facts_of(batch: Batch, section: AuditSection) -> dict[str, NDArray[Any]]:
    """What the checks across rows keep of a batch."""
    return {check.name: check.facts(batch, settings) for check, settings in active(section) if isinstance(check, Across)}


def examine(batch: Batch, section: AuditSection) -> Part:
    """Do everything that one batch alone can tell: pure, so that batches may be examined anywhere, in any order."""
    found = findings_of(batch, section)
    stats, samples = Stats(), Samples()
    stats.add(batch, found)
    samples.add(batch, found)
    return Part(batch.start, found, stats, samples, facts_of(batch, section), batch.table.column("id"))


class Facts:
    """What the checks across rows keep of all rows, other files' rows first."""

    def __init__(self) -> None:
        self._facts: dict[str, list[NDArray[Any]]] = {}
        self._names: list[Any] = []
        self._prefixes: list[str] = []
        self._starts = [0]

    def add(self, facts: dict[str, NDArray[Any]], ids: Any, prefix: str = "") -> None:
        """Keep a batch's facts; ``prefix`` names the file of rows that are only compared with."""
        for name, values in facts.items():
            self._facts.setdefault(name, []).append(values)
        self._names.append(ids)
        self._prefixes.append(prefix)
        self._starts.append(self._starts[-1] + len(ids))

    def __len__(self) -> int:
        return self._starts[-1]

    def name(self, row: int) -> str:
        """Id of a row, with the file's name before it where it is another one."""
        chunk = int(np.searchsorted(self._starts, row, side="right")) - 1
        return f"{self._prefixes[chunk]}{self._names[chunk][row - self._starts[chunk]].as_py()}"

    def findings(self, first: int, section: AuditSection) -> Iterator[RowFinding]:
        """Findings about the rows from ``first`` on, check by check; their rows are counted from there."""
        for check, settings in active(section):
            if not isinstance(check, Across) or check.name not in self._facts:
                continue
            for complaint in check.run(np.concatenate(self._facts.pop(check.name)), self.name, settings):
                if complaint.row >= first:
                    yield complaint.row - first, to_finding(check.name, settings, complaint, self.name(complaint.row))


def audit(parts: Iterable[Part], section: AuditSection, write: Write, others: Iterable[Compared] = ()) -> Tally:
    """Merge parts, in row order; hand findings to ``write`` as rows of schema/findings.py.

    Findings come in row order; those of checks across rows follow. ``others`` are rows of other datasets.
    """
    tally, facts = Tally(), Facts()
    for other in others:
        facts.add(other.facts, other.ids, f"{other.name}:")
    before = len(facts)
    for part in parts:
        write([finding.to_row() for _row, finding in part.found])
        _count(tally, part.found, part.start)
        tally.samples.merge(part.samples)
        tally.stats.merge(part.stats)
        facts.add(part.facts, part.ids)
    late: list[RowFinding] = []
    for row, finding in facts.findings(before, section):
        late.append((row, finding))
        if len(late) == _LATE:
            _finish(tally, late, write)
            late = []
    _finish(tally, late, write)
    _decide(tally, section)
    return tally


def _finish(tally: Tally, late: list[RowFinding], write: Write) -> None:
    write([finding.to_row() for _row, finding in late])
    _count(tally, late, 0)
    tally.samples.add_examples(late)


def _count(tally: Tally, found: list[RowFinding], start: int) -> None:
    for row, finding in found:
        tally.checks[finding.check].findings += 1
        if finding.severity == "error":
            tally.failed.setdefault(start + row, finding.check)
    for check, rows in Counter(check for check, _row in {(finding.check, row) for row, finding in found}).items():
        tally.checks[check].rows += rows


def _decide(tally: Tally, section: AuditSection) -> None:
    """Accept each row or count why not."""
    keep = np.zeros(tally.rows, dtype=np.bool_)
    for row, (status, reason) in enumerate(tally.stats.standing()):
        why = left_out(status, reason, tally.failed.get(row), section.gate.admit)
        keep[row] = why is None
        tally.rows_with_error += status != "reject" and row in tally.failed
        if why is not None:
            tally.left_out[known(tally.left_out, why)] += 1
    tally.keep = keep
