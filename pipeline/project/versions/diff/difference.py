"""The difference of two versions as plain values: the JSON output is exactly this, the other formats render it."""

from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.project.versions.diff.tokendiff import ChangedRow

LISTED = 1000
"""Row ids listed of each kind at most; the counts are complete."""


@dataclass(frozen=True, slots=True)
class Change:
    """One value that differs."""

    path: str
    """Dotted path in its document."""
    kind: Literal["changed", "added", "removed"]
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Counts of a dataset's rows by what happened to them."""

    old: int
    new: int
    unchanged: int
    added: int
    removed: int
    renamed: int
    """Rows with the same content under another id; they are in neither `added` nor `removed`."""
    changed: int
    changed_prompt: int
    changed_completion: int
    changed_record_only: int
    """Rows with the same token ids, but other evidence or another status."""
    ids: dict[str, list[str]]
    """The first ids of each kind: added, removed, renamed (`old -> new`), changed."""
    totals: dict[str, tuple[int, int]]
    """prompt_tokens, completion_tokens, billed_tokens: old and new number of tokens."""
    mix: dict[str, dict[str, tuple[int, int]]]
    """Column (evidence, provider, status, finish_reason) to value to its old and new number of rows."""


@dataclass(slots=True)
class DatasetDifference:
    """One dataset in two versions."""

    name: str
    presence: Literal["both", "added", "removed"]
    rows: RowCounts | None = None
    """None if the data of a version is not available; `notes` has the reason."""
    headline: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """The first figures to look at, old and new: rows, accepted, completion_tokens, cost_usd, exact, verdict."""
    metrics: dict[str, list[Change]] = field(default_factory=dict)
    """File to its figures that changed."""
    examples: list[ChangedRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Difference:
    """Two versions of a build."""

    old: str
    new: str
    config: list[Change] = field(default_factory=list)
    code: dict[str, list[str]] = field(default_factory=dict)
    """Stage to its changes: `code`, or a library with both versions."""
    rerun: dict[str, list[str]] = field(default_factory=dict)
    """Stages that do not agree with their inputs in the newer version, with reasons; the next `dvc repro` runs them."""
    followers: list[str] = field(default_factory=list)
    """Stages that may run after those."""
    rerun_basis: str = ""
    """The documents that `rerun` was computed from."""
    datasets: list[DatasetDifference] = field(default_factory=list)
    drafter: dict[str, list[Change]] = field(default_factory=dict)
    """File of the target's and the drafter's stages to its figures that changed."""
    notes: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """True if the versions are equal in everything that was compared."""
        same_rows = all(
            d.presence == "both" and not d.metrics and (d.rows is None or d.rows.unchanged == d.rows.old == d.rows.new)
            for d in self.datasets
        )
        return same_rows and not (self.config or self.code or self.rerun or self.drafter)

    @property
    def missing(self) -> list[str]:
        """The reasons why some data could not be compared."""
        return [note for dataset in self.datasets for note in dataset.notes]
