"""Two versions to one Difference: config, code, stages, each dataset's rows and figures, the drafter's figures."""

from collections.abc import Iterator
from typing import Any, Literal

from pipeline.core.errors import AerieError, ArtifactError
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.special_tokens import open_tokenizer
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.project.versions import staleness
from pipeline.project.versions.diff import row_diff
from pipeline.project.versions.diff.data import DataVersion
from pipeline.project.versions.diff.difference import LISTED, Change, Dataset, Difference, Rows
from pipeline.project.versions.diff.tokendiff import Example, example
from pipeline.project.versions.diff.version import Version, summaries_of
from pipeline.project.versions.staleness import CODE, CONFIG

HEADLINE = {
    "rows": ("audit/summary.json", "rows"),
    "accepted": ("audit/summary.json", "accepted"),
    "completion_tokens": ("audit/summary.json", "tokens.completion"),
    "cost_usd": ("generate.json", "cost_usd"),
    "exact": ("calibration.json", "exact_rate"),
    "verdict": ("audit/summary.json", "gate.verdict"),
}
"""What is shown of every dataset: name to file below build/<dataset>/ and dotted path in it."""

_RECORD = "build/target/fingerprint.json"


def changes(old: Any, new: Any) -> list[Change]:
    """Leaves in which two documents differ."""
    found = []
    for path, was, now in staleness.changes({} if old is None else old, {} if new is None else new):
        kind: Literal["changed", "added", "removed"] = "added" if was is ... else "removed" if now is ... else "changed"
        found.append(Change(path, kind, None if was is ... else was, None if now is ... else now))
    return found


def _is_figure(change: Change) -> bool:
    """Whether a changed value says something to people: no digests, no long lists."""
    return all(
        isinstance(value, int | float | None) or (isinstance(value, str) and len(value) < 40)
        for value in (change.old, change.new)
    )


def _figures(
    old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]], labels: list[str]
) -> dict[str, list[Change]]:
    """Changed figures by file, over the documents of some stages."""
    before, after = (
        {path: document for label in labels for path, document in side.get(label, {}).items()} for side in (old, new)
    )
    found = {
        path: [change for change in changes(before.get(path), after.get(path)) if _is_figure(change)]
        for path in sorted({*before, *after})
    }
    return {path: listed for path, listed in found.items() if listed}


def _code(old: Any, new: Any) -> dict[str, list[str]]:
    """Stage to what changed in its code and libraries."""
    found: dict[str, list[str]] = {}
    for path, was, now in staleness.changes(old or {}, new or {}):
        stage, _, what = path.partition(".")
        library = what.removeprefix("libraries.")
        words = (
            "code"
            if what in ("", "code")
            else f"{library} {'-' if was is ... else was} -> {'-' if now is ... else now}"
        )
        found.setdefault(stage, []).append(words)
    return found


def _pair(old: Any, new: Any, path: str) -> tuple[Any, Any]:
    for part in path.split("."):
        old, new = (value.get(part) if isinstance(value, dict) else None for value in (old, new))
    return old, new


def _rows(changed: row_diff.RowChanges) -> Rows:
    kinds = list(changed.changed.values())
    names = {name: sorted({*changed.old.counts[name], *changed.new.counts[name]}) for name in changed.old.counts}
    return Rows(
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
                value: (changed.old.counts[column][value], changed.new.counts[column][value]) for value in names[column]
            }
            for column in names
        },
    )


class Comparison:
    """Compares two versions, dataset by dataset."""

    def __init__(self, old: Version, new: Version, *, examples: int) -> None:
        self.old, self.new = old, new
        self._examples = examples
        self._tokenizer: Tokenizer | None = None
        self._tokenizer_note: str | None = None

    def run(self) -> Difference:
        """Compare all of it.

        Raises:
            AerieError: a small file that git keeps cannot be read; data that is missing is noted instead.

        """
        configs, codes = ([version.document(path) for version in (self.old, self.new)] for path in (CONFIG, CODE))
        before, after = (config["names"] for config in configs)
        found = Difference(self.old.label, self.new.label, config=changes(*configs), code=_code(*codes))
        self._stages(found, configs, codes)
        old, new = summaries_of(before, self.old), summaries_of(after, self.new)
        found.drafter = _figures(old, new, ["target", "train", "evaluate", "export"])
        for name in sorted({*before, *after}):
            found.datasets.append(self._dataset(name, name in before, name in after, old, new))
        if self._tokenizer_note:
            found.notes.append(self._tokenizer_note)
        return found

    def _stages(self, found: Difference, configs: list[Any], codes: list[Any]) -> None:
        lock = self.new.lock()
        if lock is None:
            found.rerun = staleness.affected((configs[0], codes[0]), (configs[1], codes[1]))
            found.rerun_basis = (
                f"{self.new.label} has no dvc.lock, so its config and code were compared with those of {self.old.label}"
            )
        else:
            found.rerun = staleness.stale(configs[1], codes[1], lock)
            found.rerun_basis = f"by dvc.lock of {self.new.label}"
        found.followers = staleness.followers(found.rerun, configs[1]["names"])

    def _dataset(
        self, name: str, before: bool, after: bool, old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]
    ) -> Dataset:
        dataset = Dataset(name, "both" if before and after else "added" if after else "removed")
        labels = [label for label in {**old, **new} if label.endswith(f"@{name}")]
        dataset.metrics = _figures(old, new, labels)
        documents = [
            {path: document for label in labels for path, document in side.get(label, {}).items()}
            for side in (old, new)
        ]
        for title, (file, path) in HEADLINE.items():
            dataset.headline[title] = _pair(
                documents[0].get(f"build/{name}/{file}"), documents[1].get(f"build/{name}/{file}"), path
            )
        self._compare_rows(dataset, before, after)
        return dataset

    def _compare_rows(self, dataset: Dataset, before: bool, after: bool) -> None:
        path = f"build/{dataset.name}/tokens.parquet"
        sides: list[DataVersion | None] = []
        for version, there in ((self.old, before), (self.new, after)):
            try:
                sides.append(version.data(path) if there else None)
            except ArtifactError as error:
                if str(error) not in dataset.notes:  # both versions speak of the same file
                    dataset.notes.append(str(error))
        if len(sides) < 2:
            return
        old, new = sides
        places = {
            str(side.path): f"{path} of {version.label}"
            for version, side in ((self.old, old), (self.new, new))
            if side is not None
        }
        try:
            if old is not None and new is not None and old.same_as(new):
                changed = row_diff.unchanged(new.path)
            else:
                changed = row_diff.compare(old.path if old else None, new.path if new else None)
            dataset.rows = _rows(changed)
            if old is not None and new is not None and changed.changed:
                dataset.examples = list(self._show(changed, old, new))
        except AerieError as error:
            said = str(error)
            for (
                place,
                called,
            ) in places.items():  # people know a file by its name in the build, not by its place in the cache
                said = said.replace(place, called)
            dataset.notes.append(said)

    def _show(self, changed: row_diff.RowChanges, old: DataVersion, new: DataVersion) -> Iterator[Example]:
        """The first changed rows; those whose completion changed come first."""
        ordered = sorted(changed.changed, key=lambda identity: "completion" not in changed.changed[identity])
        wanted = ordered[: self._examples]
        before, after = row_diff.pick(old.path, wanted), row_diff.pick(new.path, wanted)
        for identity in wanted:
            yield example(
                before[identity], after[identity], changed.changed[identity], row_diff.RECORD, self._open_tokenizer()
            )

    def _open_tokenizer(self) -> Tokenizer | None:
        """The newer version's tokenizer, else the older one's; None, with a note, when neither can be loaded here."""
        if self._tokenizer is None and self._tokenizer_note is None:
            document = self.new.document(_RECORD) or self.old.document(_RECORD)
            try:
                self._tokenizer = open_tokenizer(TargetRecord.model_validate(document))
            except (AerieError, ValueError) as error:
                self._tokenizer_note = f"rows are shown as ids only, since the target's tokenizer cannot be loaded here: {str(error).splitlines()[0]}"
        return self._tokenizer
