"""What a comparison found, as plain values: the JSON output is exactly this; the other formats are drawn from it."""

from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.project.versions.diff.tokendiff import Example

LISTED = 1000
"""Row ids listed of each kind; the counts are complete."""


@dataclass(frozen=True, slots=True)
class Change:
    """One value that differs."""

    path: str
    """Dotted path in its document."""
    kind: Literal["changed", "added", "removed"]
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Rows:
    """How the rows of a dataset differ."""

    old: int
    new: int
    unchanged: int
    added: int
    removed: int
    renamed: int
    """Same content under another id; in neither `added` nor `removed`."""
    changed: int
    changed_prompt: int
    changed_completion: int
    changed_record_only: int
    """Same ids, but known by other evidence, or of another status."""
    ids: dict[str, list[str]]
    """The first ids of each kind: added, removed, renamed (`old -> new`), changed."""
    totals: dict[str, tuple[int, int]]
    """Tokens, old and new: prompt_tokens, completion_tokens, billed_tokens."""
    mix: dict[str, dict[str, tuple[int, int]]]
    """Column (evidence, provider, status, finish_reason) to value to its rows, old and new."""


@dataclass(slots=True)
class Dataset:
    """One dataset in two versions."""

    name: str
    presence: Literal["both", "added", "removed"]
    rows: Rows | None = None
    """None when a version's data is not to be had; `notes` says why."""
    headline: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """What people look at first, old and new: rows, accepted, completion_tokens, cost_usd, exact, verdict."""
    metrics: dict[str, list[Change]] = field(default_factory=dict)
    """File to the figures in it that moved."""
    examples: list[Example] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Difference:
    """Two versions of a build."""

    old: str
    new: str
    config: list[Change] = field(default_factory=list)
    code: dict[str, list[str]] = field(default_factory=dict)
    """Stage to what changed: `code`, or a library with both versions."""
    rerun: dict[str, list[str]] = field(default_factory=dict)
    """Stages that do not agree with their inputs in the newer version, with reasons: the next `dvc repro` runs them."""
    followers: list[str] = field(default_factory=list)
    """Stages that may run after those."""
    rerun_basis: str = ""
    """What `rerun` was decided by."""
    datasets: list[Dataset] = field(default_factory=list)
    drafter: dict[str, list[Change]] = field(default_factory=dict)
    """File of the target's and the drafter's stages to the figures in it that moved."""
    notes: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether the versions are the same in all that was compared."""
        same_rows = all(
            d.presence == "both" and not d.metrics and (d.rows is None or d.rows.unchanged == d.rows.old == d.rows.new)
            for d in self.datasets
        )
        return same_rows and not (self.config or self.code or self.rerun or self.drafter)

    @property
    def missing(self) -> list[str]:
        """Why data could not be compared, where it could not."""
        return [note for dataset in self.datasets for note in dataset.notes]
