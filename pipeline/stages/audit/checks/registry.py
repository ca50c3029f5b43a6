"""The one list of checks, in the order in which reports show them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from pipeline.stages.audit.inputs.batch import Batch


class Complaint(NamedTuple):
    """What a check has against a row."""

    row: int
    """Index in the batch; in the whole table for a check across rows."""
    position: int | None
    """Index into the row's completion_ids, or None when the whole row is meant."""
    message: str


CheckFunction = Callable[[Batch, Any], Iterable[Complaint]]
FactsFunction = Callable[[Batch, Any], NDArray[Any]]
AcrossFunction = Callable[[NDArray[Any], Callable[[int], str], Any], Iterable[Complaint]]


@dataclass(frozen=True, slots=True)
class Check:
    """A check of single rows."""

    name: str
    text: str
    """What it asks, in a sentence: printed by the report."""
    run: CheckFunction
    """Batch and the check's own section of the config to complaints, at most a few a row."""


@dataclass(frozen=True, slots=True)
class Across:
    """A check that compares rows with each other, by a few bytes of each: memory must not hold the rows themselves."""

    name: str
    text: str
    column: str
    """Column of schema/sketch.py in which the facts are kept."""
    facts: FactsFunction
    """Batch and settings to the facts of its rows; [rows] or [rows, width], zeros for a row with nothing to compare."""
    run: AcrossFunction
    """Facts of all rows, a function from row to id, and settings to complaints, in row order."""


CHECKS: dict[str, Check | Across] = {}


def check(name: str, text: str) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check; the name is its key in the config and in every report, so a new name breaks both."""

    def register(run: CheckFunction) -> CheckFunction:
        _add(Check(name, text, run))
        return run

    return register


def across(name: str, text: str, column: str, facts: FactsFunction) -> Callable[[AcrossFunction], AcrossFunction]:
    """Register a check across rows."""

    def register(run: AcrossFunction) -> AcrossFunction:
        _add(Across(name, text, column, facts, run))
        return run

    return register


def _add(new: Check | Across) -> None:
    if new.name in CHECKS:
        raise ValueError(f"check {new.name!r} is already taken by {CHECKS[new.name].run.__qualname__}")
    CHECKS[new.name] = new
