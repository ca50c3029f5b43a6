"""A difference as a Markdown comment on a pull request: at most 65,536 characters, details folded, text escaped."""

import itertools
import re
from collections.abc import Iterable, Iterator

from pipeline.core.html.markup import visible
from pipeline.project.report.markdown import code, inert
from pipeline.project.versions.diff import wording
from pipeline.project.versions.diff.difference import DatasetDifference, Difference

LIMIT = 65_536
"""Characters of one comment that GitHub takes at most."""

MARK = "<!-- aerie dataset diff -->"
"""First line of the comment, by which the workflow finds its own comment."""

_OPEN_LINES = 12
"""Lines of a list that are shown; the others are folded."""
_FOLDED_LINES = 200
_RESERVE = 300
_TABLE = 30_000
"""Characters of the table of datasets at most."""


def _fenced(lines: Iterable[str], language: str = "") -> str:
    """Return untrusted text as a fenced block, with a fence longer than any in the text."""
    body = visible("\n".join(lines))
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", body)), default=0))
    return f"{fence}{language}\n{body}\n{fence}"


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>\n"


def _listed(lines: list[str]) -> str:
    """Return a list whose tail is folded."""
    text = "".join(f"- {line}\n" for line in lines[:_OPEN_LINES])
    rest = lines[_OPEN_LINES:_FOLDED_LINES]
    if rest:
        left = f"\n- and {len(lines) - _FOLDED_LINES} more" if len(lines) > _FOLDED_LINES else ""
        text += "\n" + _folded(f"{len(lines) - _OPEN_LINES} more", "".join(f"- {line}\n" for line in rest) + left)
    return text


def _dataset_table(difference: Difference) -> str:
    lines = [
        "| dataset | rows | + | − | changed | accepted | completion tokens | cost, $ | exact | verdict |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for dataset in difference.datasets:
        rows, head = dataset.rows, dataset.headline
        counts = [f"{rows.added:,}", f"{rows.removed:,}", f"{rows.changed:,}"] if rows else ["?"] * 3
        first = wording.pair(rows.old, rows.new) if rows else wording.pair(*head["rows"])
        cells = [
            first,
            *counts,
            *(wording.pair(*head[name]) for name in ("accepted", "completion_tokens", "cost_usd", "exact", "verdict")),
        ]
        lines.append(f"| {code(wording.presence(dataset))} | {' | '.join(map(inert, cells))} |")
    sizes = itertools.accumulate(len(line) + 1 for line in lines)
    shown = [line for line, size in zip(lines, sizes, strict=True) if size < _TABLE]
    more = f"\n{len(lines) - len(shown)} more datasets\n" if len(shown) < len(lines) else ""
    return "\n".join(shown) + "\n" + more


def _stage_lines(difference: Difference) -> list[str]:
    lines = [
        f"{code(label)}: {code('; '.join(reasons[:4]) + ('; ...' if len(reasons) > 4 else ''))}"
        for label, reasons in difference.rerun.items()
    ]
    if difference.followers:
        lines.append(f"and what follows, as far as their inputs change: {code(', '.join(difference.followers))}")
    return lines


def _mix(dataset: DatasetDifference) -> list[str]:
    """Return the changed counts of evidence, providers, status and finish reasons."""
    if dataset.rows is None:
        return []
    return [
        f"{column} {code(name)}: {wording.pair(*pair)}"
        for column, counts in dataset.rows.mix.items()
        for name, pair in counts.items()
        if pair[0] != pair[1]
    ]


def _examples(dataset: DatasetDifference) -> Iterator[str]:
    for row in dataset.examples:
        lines = [
            f"{mark} {text}"
            for diff in (row.prompt, row.completion)
            if diff is not None
            for mark, text in wording.diff_lines(diff)
        ]
        body = _fenced(lines, "diff") if lines else "The ids are the same."
        yield _folded(code(wording.row_title(row)), body)


def _sections(difference: Difference) -> Iterator[str]:
    """Yield all parts of the comment, the most important first."""
    yield f"## Data: {code(difference.old)} → {code(difference.new)}\n\n{inert(wording.summary(difference))}\n"
    yield _dataset_table(difference)
    notes = [code(note) for note in [*difference.notes, *difference.missing]]
    if notes:
        yield f"### Not compared\n\n{_listed(notes)}"
    if difference.config:
        values = [code(wording.change(change)) for change in difference.config]
        yield f"### Config ({len(values)} values)\n\n{_listed(values)}"
    if difference.code:
        changed = [f"{code(stage)}: {code(', '.join(parts))}" for stage, parts in difference.code.items()]
        yield f"### Code\n\n{_listed(changed)}"
    title = "will rerun" if difference.rerun else "nothing will rerun"
    yield f"### Stages: {title}\n\n{_listed(_stage_lines(difference))}\n<sub>{inert(difference.rerun_basis)}</sub>\n"
    for file, changes in difference.drafter.items():
        yield f"### {code(file)}\n\n{_listed([code(wording.change(change)) for change in changes])}"
    for dataset in difference.datasets:
        figures = [
            *_mix(dataset),
            *(
                f"{code(file)} {code(wording.change(change))}"
                for file, changes in dataset.metrics.items()
                for change in changes
            ),
        ]
        rows = (
            f"{wording.row_counts(dataset.rows)}.\n\n"
            if dataset.rows and dataset.rows.unchanged != dataset.rows.new + dataset.rows.removed
            else ""
        )
        if rows or figures:
            folded = _folded(f"{len(figures)} figures changed", _listed(figures)) if figures else ""
            yield f"### {code(wording.presence(dataset))}\n\n{rows}{folded}"
        yield from _examples(dataset)


def render(difference: Difference, limit: int = LIMIT) -> str:
    """Return the comment; parts that do not fit are left out and counted."""
    text, left_out = f"{MARK}\n", 0
    for section in _sections(difference):
        if len(text) + len(section) + 1 > limit - _RESERVE:
            left_out += 1
        else:
            text += section + "\n"
    if left_out:
        text += (
            f"\n{left_out} more parts do not fit into a comment: "
            "see the HTML page (`python -m pipeline diff --format html`).\n"
        )
    return text
