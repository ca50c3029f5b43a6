"""The words that both page formats share, without markup: values, pairs, counts, one-line summaries."""

from typing import Any

from pipeline.project.versions.diff.difference import Change, DatasetDifference, Difference, RowCounts
from pipeline.project.versions.diff.tokendiff import ChangedRow, SequenceDiff

_LONGEST = 120


def value(content: Any) -> str:
    """Write one value, shortened to 120 characters."""
    if content is None:
        return "-"
    if isinstance(content, bool) or not isinstance(content, int | float):
        text = str(content)
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return f"{content:,}" if isinstance(content, int) else f"{content:.6g}"


def pair(old: Any, new: Any) -> str:
    """Write old and new value, or one of them if they are equal; with the difference of numbers."""
    if old == new:
        return value(new)
    numbers = all(isinstance(item, int | float) and not isinstance(item, bool) for item in (old, new))
    delta = (
        f" ({new - old:+,})" if numbers and isinstance(new - old, int) else f" ({new - old:+.4g})" if numbers else ""
    )
    return f"{value(old)} → {value(new)}{delta}"


def change(item: Change) -> str:
    """Write one changed value with its path."""
    if item.kind == "added":
        return f"{item.path}: added, {value(item.new)}"
    if item.kind == "removed":
        return f"{item.path}: removed, was {value(item.old)}"
    return f"{item.path}: {pair(item.old, item.new)}"


def row_counts(rows: RowCounts) -> str:
    """Write the counts of a dataset's rows as one sentence."""
    parts = [f"{rows.added:,} added", f"{rows.removed:,} removed", f"{rows.changed:,} changed"]
    if rows.renamed:
        parts.append(f"{rows.renamed:,} under another id")
    detail = (
        f" (prompt {rows.changed_prompt:,}, completion {rows.changed_completion:,}, "
        f"other columns only {rows.changed_record_only:,})"
        if rows.changed
        else ""
    )
    return f"{', '.join(parts)}{detail}, {rows.unchanged:,} as before"


def summary(difference: Difference) -> str:
    """Summarize the whole difference in one line."""
    if difference.is_empty:
        return (
            "No difference in config, code, rows or figures."
            if not difference.missing
            else "No difference in what git holds; some data could not be compared."
        )
    failing = [d.name for d in difference.datasets if d.headline.get("verdict", (None, None))[1] == "no-go"]
    counted = [d.rows for d in difference.datasets if d.rows is not None]
    added, removed, changed = (sum(getattr(rows, name) for rows in counted) for name in ("added", "removed", "changed"))
    parts = [f"{added:,} rows added, {removed:,} removed, {changed:,} changed"] if counted else []
    if unknown := [d.name for d in difference.datasets if d.rows is None]:
        parts.append(f"rows could not be compared of {', '.join(unknown)}")
    parts.append(f"config values changed: {len(difference.config)}")
    parts.append(f"the gate says no-go for {', '.join(failing)}" if failing else "the gate stops no dataset")
    return f"{'; '.join(parts)}."


def presence(dataset: DatasetDifference) -> str:
    """Write a dataset's name, with a remark if only one version has it."""
    return dataset.name if dataset.presence == "both" else f"{dataset.name} ({dataset.presence})"


def row_title(row: ChangedRow) -> str:
    """Summarize one changed row in a line."""
    parts = []
    for name, diff in (("prompt", row.prompt), ("completion", row.completion)):
        if diff is not None:
            remark = ", same text in other tokens" if diff.same_text else ""
            lengths = f"{diff.old_length:,} → {diff.new_length:,} tokens"
            parts.append(f"{name} {lengths}, first difference at {diff.shared_start:,}{remark}")
    parts += [f"{name} {pair(old, new)}" for name, (old, new) in row.record.items()]
    return f"{row.id}: {'; '.join(parts) or 'segments'}"


def diff_lines(diff: SequenceDiff) -> list[tuple[str, str]]:
    """Return the lines of a token-level diff: mark (blank, -, +) and text, with the line breaks of the data escaped."""
    lines = [(" ", f"{diff.shared_start:,} tokens alike, ending in {_quoted(diff.before.text)} {diff.before.ids}")]
    for mark, span in (("-", diff.old), ("+", diff.new)):
        more = f" and {span.omitted:,} more tokens" if span.omitted else ""
        if span.ids or span.omitted:
            lines.append((mark, f"{_quoted(span.text)} {span.ids}{more}"))
    if diff.shared_end:
        lines.append((" ", f"{diff.shared_end:,} tokens alike to the end"))
    return lines


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") + "'"
