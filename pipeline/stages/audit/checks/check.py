"""The types of checks: checks of single rows, checks of a whole dataset, and what both report."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from pipeline.stages.audit.inputs.batch import Batch


class Complaint(NamedTuple):
    """One fault that a check found in a row; the engine makes a finding of it."""

    row: int
    """Index in the batch, or in the whole table for a `DatasetCheck`."""
    position: int | None
    """Index into the row's completion_ids, or None where the fault has no position in them."""
    message: str


RowFunction = Callable[[Batch, Any], Iterable[Complaint]]
FactsFunction = Callable[[Batch, Any], NDArray[Any]]
DatasetFunction = Callable[[NDArray[Any], Callable[[int], str], Any], Iterable[Complaint]]


@dataclass(frozen=True, slots=True)
class RowCheck:
    """A check that looks at single rows. Its severity and limits are in the configuration, under its name."""

    name: str
    sentence: str
    """The rule that a good row follows; reports print it."""
    run: RowFunction
    """Takes a batch and the check's own section of the configuration; yields at most a few complaints a row."""


@dataclass(frozen=True, slots=True)
class DatasetCheck:
    """A check that compares all rows with each other, by a few bytes of each, since memory cannot hold all rows."""

    name: str
    sentence: str
    """The rule that a good row follows; reports print it."""
    column: str
    """Column of schema/sketch.py that holds the facts."""
    facts: FactsFunction
    """Takes a batch and the settings; returns [rows] or [rows, width], zeros for a row with nothing to compare."""
    run: DatasetFunction
    """Takes the facts of all rows, a function from row to id, and the settings; yields complaints in row order."""
