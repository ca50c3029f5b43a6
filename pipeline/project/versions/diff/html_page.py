"""A difference as one self-contained HTML page in the frame of all reports, readable without network or scripts."""

from collections.abc import Iterable, Iterator

from pipeline.core.html.blocks import table
from pipeline.core.html.frame import page
from pipeline.core.html.markup import Html, join, tag
from pipeline.project.versions.diff import wording
from pipeline.project.versions.diff.difference import DatasetDifference, Difference

_CLASSES = {"-": "old", "+": "new", " ": "same"}
_HEADLINE = ("accepted", "completion_tokens", "cost_usd", "exact", "verdict")


def _list(lines: Iterable[str]) -> Html:
    return tag("ul", *(tag("li", line) for line in lines))


def _overview(difference: Difference) -> Html:
    rows = []
    for dataset in difference.datasets:
        counts = [
            str(getattr(dataset.rows, kind)) if dataset.rows else "?"
            for kind in ("added", "removed", "changed", "renamed")
        ]
        first = (
            wording.pair(dataset.rows.old, dataset.rows.new)
            if dataset.rows
            else wording.pair(*dataset.headline["rows"])
        )
        rows.append(
            [wording.presence(dataset), first, *counts, *(wording.pair(*dataset.headline[name]) for name in _HEADLINE)]
        )
    heads = (
        "dataset",
        "rows",
        "added",
        "removed",
        "changed",
        "renamed",
        "accepted",
        "completion tokens",
        "cost, $",
        "exact",
        "verdict",
    )
    return table(heads, rows, caption="Datasets, before and after")


def _dataset(dataset: DatasetDifference) -> Iterator[Html]:
    if dataset.rows is not None:
        yield tag("p", f"{wording.row_counts(dataset.rows)}.")
        changed = [
            [column, name, wording.pair(*pair)]
            for column, counts in dataset.rows.mix.items()
            for name, pair in counts.items()
            if pair[0] != pair[1]
        ]
        if changed:
            yield table(("column", "value", "rows"), changed, caption="Rows by column value")
        for kind, ids in dataset.rows.ids.items():
            if ids:
                more = f", the first {len(ids)}" if len(ids) < getattr(dataset.rows, kind) else ""
                yield tag(
                    "details",
                    tag("summary", f"{kind}: {getattr(dataset.rows, kind):,} rows{more}"),
                    tag("pre", "\n".join(ids)),
                )
    figures = [[file, wording.change(change)] for file, changes in dataset.metrics.items() for change in changes]
    if figures:
        yield tag(
            "details",
            tag("summary", f"{len(figures)} figures changed"),
            table(("file", "figure"), figures, caption="Metrics"),
        )
    for row in dataset.examples:
        lines = [line for diff in (row.prompt, row.completion) if diff is not None for line in wording.diff_lines(diff)]
        body = (tag("pre", f"{mark} {text}", class_=_CLASSES[mark]) for mark, text in lines)
        yield tag("details", tag("summary", wording.row_title(row)), *body, open=True)


def _sections(difference: Difference) -> Iterator[tuple[str, str, Html]]:
    """Yield the parts of the page as (id, heading, body)."""
    head = tag("h1", f"Data: {difference.old} \u2192 {difference.new}")
    yield "verdict", "", join(head, tag("p", wording.summary(difference)), _overview(difference))
    if notes := [*difference.notes, *difference.missing]:
        yield "missing", "Not compared", _list(notes)
    yield "config", f"Config: {len(difference.config)} values changed", _list(map(wording.change, difference.config))
    if difference.code:
        yield "code", "Code", _list(f"{stage}: {', '.join(parts)}" for stage, parts in difference.code.items())
    yield "stages", "Stages that will rerun", _rerun(difference)
    for number, (file, changes) in enumerate(difference.drafter.items()):
        yield f"drafter-{number}", file, _list(map(wording.change, changes))
    for number, dataset in enumerate(difference.datasets):
        yield f"dataset-{number}", wording.presence(dataset), join(*_dataset(dataset))


def _rerun(difference: Difference) -> Html:
    rows = [[label, "; ".join(reasons)] for label, reasons in difference.rerun.items()]
    return join(
        tag("p", difference.rerun_basis),
        table(("stage", "why"), rows, caption="Stages, and what changed for them") if rows else tag("p", "None."),
        tag("p", f"And what follows, as far as their inputs change: {', '.join(difference.followers)}")
        if difference.followers
        else None,
    )


def render(difference: Difference) -> str:
    """Return the page."""
    return page(f"Data: {difference.old} \u2192 {difference.new}", list(_sections(difference)))
