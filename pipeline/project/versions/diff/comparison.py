"""The comparison of two versions: config, code, stages, each dataset's rows and figures, the drafter's figures."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from pipeline.core.errors import AerieError, ArtifactError
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.special_tokens import open_tokenizer
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.project.versions import staleness
from pipeline.project.versions.diff import row_diff
from pipeline.project.versions.diff.data_store import DataStore, DataVersion
from pipeline.project.versions.diff.difference import LISTED, Change, DatasetDifference, Difference, RowCounts
from pipeline.project.versions.diff.tokendiff import ChangedRow, changed_row
from pipeline.project.versions.diff.version import Revision, Version, WorkingTree, parse_range, summaries_of
from pipeline.project.versions.staleness import CODE, CONFIG

HEADLINE = {
    "rows": ("audit/summary.json", "rows"),
    "accepted": ("audit/summary.json", "accepted"),
    "completion_tokens": ("audit/summary.json", "tokens.completion"),
    "cost_usd": ("generate.json", "cost_usd"),
    "exact": ("calibration.json", "exact_rate"),
    "verdict": ("audit/summary.json", "gate.verdict"),
}
"""Figures shown of every dataset: name to file below build/<dataset>/ and dotted path in it."""

_RECORD = "build/target/fingerprint.json"
_LONGEST_FIGURE = 40
"""Characters of a text that counts as a figure; digests are longer."""

Summaries = dict[str, dict[str, Any]]
"""Small documents of a version: stage label to path to content."""


def changes(old: Any, new: Any) -> list[Change]:
    """Return the leaves in which two documents differ; None is an empty document."""
    listed = []
    for path, was, now in staleness.changes({} if old is None else old, {} if new is None else new):
        kind: Literal["changed", "added", "removed"] = "added" if was is ... else "removed" if now is ... else "changed"
        listed.append(Change(path, kind, None if was is ... else was, None if now is ... else now))
    return listed


def _is_figure(change: Change) -> bool:
    """Return whether a reader can judge a changed value: a number or a short text, not a digest or a list."""
    return all(
        isinstance(value, int | float | None) or (isinstance(value, str) and len(value) < _LONGEST_FIGURE)
        for value in (change.old, change.new)
    )


def _documents(side: Summaries, labels: list[str]) -> dict[str, Any]:
    """Return the documents of some stages by path."""
    return {path: document for label in labels for path, document in side.get(label, {}).items()}


def _figures(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[Change]]:
    """Return the changed figures by file."""
    changed = {
        path: [change for change in changes(before.get(path), after.get(path)) if _is_figure(change)]
        for path in sorted({*before, *after})
    }
    return {path: listed for path, listed in changed.items() if listed}


def _code(old: Any, new: Any) -> dict[str, list[str]]:
    """Return the changes of each stage's code and libraries."""
    changed: dict[str, list[str]] = {}
    for path, was, now in staleness.changes(old or {}, new or {}):
        stage, _, part = path.partition(".")
        library = part.removeprefix("libraries.")
        versions = f"{library} {'-' if was is ... else was} -> {'-' if now is ... else now}"
        changed.setdefault(stage, []).append("code" if part in ("", "code") else versions)
    return changed


def _value_at(document: Any, path: str) -> Any:
    for part in path.split("."):
        document = document.get(part) if isinstance(document, dict) else None
    return document


def _row_counts(changed: row_diff.RowChanges) -> RowCounts:
    kinds = list(changed.changed.values())
    values = {name: sorted({*changed.old.counts[name], *changed.new.counts[name]}) for name in changed.old.counts}
    return RowCounts(
        old=changed.old.rows,
        new=changed.new.rows,
        unchanged=changed.unchanged,
        added=len(changed.added),
        removed=len(changed.removed),
        renamed=len(changed.renamed),
        changed=len(kinds),
        changed_prompt=sum("prompt" in kind for kind in kinds),
        changed_completion=sum("completion" in kind for kind in kinds),
        changed_record_only=sum(kind == ["record"] for kind in kinds),
        ids={
            "added": changed.added[:LISTED],
            "removed": changed.removed[:LISTED],
            "renamed": [f"{old} -> {new}" for old, new in changed.renamed[:LISTED]],
            "changed": list(changed.changed)[:LISTED],
        },
        totals={
            name: (getattr(changed.old, name), getattr(changed.new, name))
            for name in ("prompt_tokens", "completion_tokens", "billed_tokens")
        },
        mix={
            column: {
                value: (changed.old.counts[column][value], changed.new.counts[column][value])
                for value in values[column]
            }
            for column in values
        },
    )


class _DataFiles(NamedTuple):
    """The rows of one dataset in both versions; None if a version does not have the dataset."""

    old: DataVersion | None
    new: DataVersion | None


def compare_versions(revisions: list[str], *, examples: int, fetch: bool) -> Difference:
    """Compare the versions that arguments of a command name.

    Args:
        revisions: as `parse_range` takes them.
        examples: changed rows shown of each dataset at most.
        fetch: bring missing data from the DVC remote into the cache.

    Raises:
        AerieError: a revision does not exist or holds no build, dvc.lock is broken, or the config does not compose.

    """
    old, new = parse_range(revisions)
    store = DataStore(fetch=fetch)
    newer: Version = WorkingTree(store) if new is None else Revision(new, store)
    return Comparison(Revision(old, store), newer, examples=examples).run()


class Comparison:
    """Compares two versions, dataset by dataset."""

    def __init__(self, old: Version, new: Version, *, examples: int) -> None:
        self.old, self.new = old, new
        self._examples = examples
        self._tokenizer: Tokenizer | None = None
        self._tokenizer_note: str | None = None

    def run(self) -> Difference:
        """Compare everything.

        Raises:
            AerieError: a small file that git keeps cannot be read; missing data becomes a note instead.

        """
        configs, codes = ([version.document(path) for version in (self.old, self.new)] for path in (CONFIG, CODE))
        before, after = (config["names"] for config in configs)
        difference = Difference(self.old.label, self.new.label, config=changes(*configs), code=_code(*codes))
        self._stages(difference, configs, codes)
        old, new = summaries_of(before, self.old), summaries_of(after, self.new)
        shared_stages = ["target", "train", "evaluate", "export"]
        difference.drafter = _figures(_documents(old, shared_stages), _documents(new, shared_stages))
        for name in sorted({*before, *after}):
            presence: Literal["both", "added", "removed"]
            presence = "added" if name not in before else "removed" if name not in after else "both"
            difference.datasets.append(self._dataset(DatasetDifference(name, presence), old, new))
        if self._tokenizer_note:
            difference.notes.append(self._tokenizer_note)
        return difference

    def _stages(self, difference: Difference, configs: list[Any], codes: list[Any]) -> None:
        """Add the stages that will rerun."""
        lock = self.new.lock()
        if lock is None:
            difference.rerun = staleness.affected((configs[0], codes[0]), (configs[1], codes[1]))
            difference.rerun_basis = (
                f"{self.new.label} has no dvc.lock, so its config and code were compared with those of {self.old.label}"
            )
        else:
            difference.rerun = staleness.stale(configs[1], codes[1], lock)
            difference.rerun_basis = f"by dvc.lock of {self.new.label}"
        difference.followers = staleness.followers(difference.rerun, configs[1]["names"])

    def _dataset(self, dataset: DatasetDifference, old: Summaries, new: Summaries) -> DatasetDifference:
        """Add figures and rows to the difference of a dataset."""
        labels = [label for label in {**old, **new} if label.endswith(f"@{dataset.name}")]
        before, after = _documents(old, labels), _documents(new, labels)
        dataset.metrics = _figures(before, after)
        for title, (file, path) in HEADLINE.items():
            place = f"build/{dataset.name}/{file}"
            dataset.headline[title] = _value_at(before.get(place), path), _value_at(after.get(place), path)
        path = f"build/{dataset.name}/tokens.parquet"
        if (files := self._data_files(dataset, path)) is not None:
            self._compare_rows(dataset, files, path)
        return dataset

    def _data_files(self, dataset: DatasetDifference, path: str) -> _DataFiles | None:
        """Find the rows of both versions; None, with notes, if a version's rows are not available."""
        sides: list[DataVersion | None] = []
        for version, absent in ((self.old, "added"), (self.new, "removed")):
            try:
                sides.append(None if dataset.presence == absent else version.data(path))
            except ArtifactError as error:
                if str(error) not in dataset.notes:  # both versions may have the same file
                    dataset.notes.append(str(error))
        return _DataFiles(*sides) if len(sides) == 2 else None

    def _compare_rows(self, dataset: DatasetDifference, files: _DataFiles, path: str) -> None:
        """Add the rows' counts and examples; a note if a file is damaged."""
        old, new = files
        try:
            if old is not None and new is not None and old.same_as(new):
                changed = row_diff.unchanged(new.path)
            else:
                changed = row_diff.compare(old.path if old else None, new.path if new else None)
            dataset.rows = _row_counts(changed)
            if old is not None and new is not None and changed.changed:
                dataset.examples = list(self._changed_rows(changed, old, new))
        except AerieError as error:
            note = str(error)
            for version, file in ((self.old, old), (self.new, new)):  # the cache's path says nothing to a reader
                if file is not None:
                    note = note.replace(str(file.path), f"{path} of {version.label}")
            dataset.notes.append(note)

    def _changed_rows(self, changed: row_diff.RowChanges, old: DataVersion, new: DataVersion) -> Iterator[ChangedRow]:
        """Yield the first changed rows; those with a changed completion come first."""
        ordered = sorted(changed.changed, key=lambda row: "completion" not in changed.changed[row])
        shown = ordered[: self._examples]
        before, after = row_diff.pick(old.path, shown), row_diff.pick(new.path, shown)
        for row in shown:
            yield changed_row(before[row], after[row], changed.changed[row], row_diff.RECORD, self._open_tokenizer())

    def _open_tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer of the newer version, else of the older; None, with a note, if it cannot be loaded."""
        if self._tokenizer is None and self._tokenizer_note is None:
            document = self.new.document(_RECORD) or self.old.document(_RECORD)
            try:
                self._tokenizer = open_tokenizer(TargetRecord.model_validate(document))
            except (AerieError, ValueError) as error:
                reason = str(error).splitlines()[0]
                self._tokenizer_note = (
                    f"rows are shown as ids only, since the target's tokenizer cannot be loaded here: {reason}"
                )
        return self._tokenizer
