"""A difference as one self-contained HTML page: everything, readable without network or scripts."""

from collections.abc import Iterable, Iterator

from pipeline.diff import wording
from pipeline.diff.model import Dataset, Difference
from pipeline.report.html import safe

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72em;margin:2em auto;padding:0 1em;color:#1b1f24;background:#fff}"
    "table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #d0d7de;padding:.25em .6em;text-align:left;vertical-align:top}"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f6f8fa;padding:.6em;margin:.3em 0}"
    ".old{background:#ffebe9}.new{background:#dafbe1}code{background:#f6f8fa;overflow-wrap:anywhere}summary{cursor:pointer}"
    "@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}pre,code{background:#161b22}.old{background:#3c1618}.new{background:#12351f}td,th{border-color:#30363d}}"
)
_CLASSES = {"-": "old", "+": "new", " ": "same"}


def _list(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{safe(line)}</li>" for line in lines) + "</ul>"


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    titles = "".join(f"<th scope=col>{safe(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{safe(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _overview(difference: Difference) -> str:
    names = ["accepted", "completion_tokens", "cost_usd", "exact", "verdict"]
    rows = []
    for dataset in difference.datasets:
        counts = [str(getattr(dataset.rows, kind)) if dataset.rows else "?" for kind in ("added", "removed", "changed", "renamed")]
        first = wording.pair(dataset.rows.old, dataset.rows.new) if dataset.rows else wording.pair(*dataset.headline["rows"])
        rows.append([wording.presence(dataset), first, *counts, *(wording.pair(*dataset.headline[name]) for name in names)])
    return _table(["dataset", "rows", "added", "removed", "changed", "renamed", "accepted", "completion tokens", "cost, $", "exact", "verdict"], rows)


def _dataset(dataset: Dataset) -> Iterator[str]:
    yield f"<h2>{safe(wording.presence(dataset))}</h2>"
    if dataset.rows is not None:
        yield f"<p>{safe(wording.row_counts(dataset.rows))}.</p>"
        moved = [[column, name, wording.pair(*pair)] for column, found in dataset.rows.mix.items() for name, pair in found.items() if pair[0] != pair[1]]
        if moved:
            yield _table(["column", "value", "rows"], moved)
        for kind, ids in dataset.rows.ids.items():
            if ids:
                more = f", the first {len(ids)}" if len(ids) < getattr(dataset.rows, kind) else ""
                yield f"<details><summary>{safe(kind)}: {getattr(dataset.rows, kind):,} rows{more}</summary><pre>{safe(chr(10).join(ids))}</pre></details>"
    figures = [[file, wording.change(change)] for file, found in dataset.metrics.items() for change in found]
    if figures:
        yield f"<details><summary>{len(figures)} figures moved</summary>{_table(['file', 'figure'], figures)}</details>"
    for found in dataset.examples:
        lines = [line for diff in (found.prompt, found.completion) if diff is not None for line in wording.diff_lines(diff)]
        body = "".join(f'<pre class="{_CLASSES[mark]}">{mark} {safe(text)}</pre>' for mark, text in lines)
        yield f"<details open><summary>{safe(wording.example_title(found))}</summary>{body}</details>"


def render(difference: Difference) -> str:
    """Write the page."""
    title = f"Data: {difference.old} → {difference.new}"
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{safe(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{safe(title)}</h1><p>{safe(wording.verdict(difference))}</p>",
        _overview(difference),
    ]
    if notes := [*difference.notes, *difference.missing]:
        parts.append(f"<h2>Not compared</h2>{_list(notes)}")
    parts.append(f"<h2>Config: {len(difference.config)} values changed</h2>{_list(map(wording.change, difference.config))}")
    if difference.code:
        parts.append("<h2>Code</h2>" + _list(f"{stage}: {', '.join(what)}" for stage, what in difference.code.items()))
    parts.append(f"<h2>Stages that will rerun</h2><p>{safe(difference.rerun_basis)}</p>")
    parts.append(_table(["stage", "why"], [[label, "; ".join(reasons)] for label, reasons in difference.rerun.items()]) if difference.rerun else "<p>None.</p>")
    if difference.followers:
        parts.append(f"<p>And what follows, as far as their inputs change: {safe(', '.join(difference.followers))}</p>")
    for file, found in difference.drafter.items():
        parts.append(f"<h2>{safe(file)}</h2>{_list(map(wording.change, found))}")
    for dataset in difference.datasets:
        parts.extend(_dataset(dataset))
    return "\n".join([*parts, "</body></html>\n"])
