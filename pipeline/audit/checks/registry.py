"""The one list of checks, in the order in which reports show them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.audit.batch import Batch


class Complaint(NamedTuple):
    """What a check has against a row of the batch."""

    row: int
    """Index in the batch."""
    position: int | None
    """Index into the row's completion_ids, or None when the whole row is meant."""
    message: str


CheckFunction = Callable[[Batch, Any], Iterable[Complaint]]


@dataclass(frozen=True, slots=True)
class Check:
    """A check of single rows."""

    name: str
    text: str
    """What it asks, in a sentence: printed by the report."""
    run: CheckFunction
    """Batch and the check's own section of the config to complaints, at most a few a row."""


CHECKS: dict[str, Check] = {}


def check(name: str, text: str) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check; the name is its key in the config and in every report, so a new name breaks both."""

    def register(run: CheckFunction) -> CheckFunction:
        if name in CHECKS:
            raise ValueError(f"check {name!r} is already taken by {CHECKS[name].run.__qualname__}")
        CHECKS[name] = Check(name, text, run)
        return run

    return register
