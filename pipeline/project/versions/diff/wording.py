"""The words that both page formats share: how a value, a pair, a count is written. No markup here."""

from typing import Any

from pipeline.project.versions.diff.difference import Change, Dataset, Difference, Rows
from pipeline.project.versions.diff.tokendiff import Example, SequenceDiff

_LONGEST = 120


def value(found: Any) -> str:
    """One value, short."""
    if found is None:
        return "-"
    if isinstance(found, bool) or not isinstance(found, int | float):
        text = str(found)
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return f"{found:,}" if isinstance(found, int) else f"{found:.6g}"


def pair(old: Any, new: Any) -> str:
    """Old and new, or one of them when they are the same; with the difference of numbers."""
    if old == new:
        return value(new)
    numbers = all(isinstance(item, int | float) and not isinstance(item, bool) for item in (old, new))
    delta = (
        f" ({new - old:+,})" if numbers and isinstance(new - old, int) else f" ({new - old:+.4g})" if numbers else ""
    )
    return f"{value(old)} → {value(new)}{delta}"


def change(found: Change) -> str:
    """One changed value with its path."""
    if found.kind == "added":
        return f"{found.path}: added, {value(found.new)}"
    if found.kind == "removed":
        return f"{found.path}: removed, was {value(found.old)}"
    return f"{found.path}: {pair(found.old, found.new)}"


def row_counts(rows: Rows) -> str:
    """What happened to a dataset's rows, in one sentence."""
    parts = [f"{rows.added:,} added", f"{rows.removed:,} removed", f"{rows.changed:,} changed"]
    if rows.renamed:
        parts.append(f"{rows.renamed:,} under another id")
    detail = (
        f" (prompt {rows.changed_prompt:,}, completion {rows.changed_completion:,}, only what is recorded of it {rows.changed_record_only:,})"
        if rows.changed
        else ""
    )
    return f"{', '.join(parts)}{detail}, {rows.unchanged:,} as before"


def verdict(difference: Difference) -> str:
    """One line for all datasets."""
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


def presence(dataset: Dataset) -> str:
    """A dataset's name, and whether it came or went."""
    return dataset.name if dataset.presence == "both" else f"{dataset.name} ({dataset.presence})"


def example_title(found: Example) -> str:
    """One changed row in one line."""
    parts = []
    for name, diff in (("prompt", found.prompt), ("completion", found.completion)):
        if diff is not None:
            cut = ", same text cut otherwise" if diff.same_text else ""
            parts.append(
                f"{name} {diff.old_length:,} → {diff.new_length:,} tokens, parts at {diff.shared_start:,}{cut}"
            )
    parts += [f"{name} {pair(old, new)}" for name, (old, new) in found.record.items()]
    return f"{found.id}: {'; '.join(parts) or 'segments'}"


def diff_lines(diff: SequenceDiff) -> list[tuple[str, str]]:
    """Lines of a token-level diff: mark (blank, -, +) and text; line breaks of the data are escaped, so a line stays one."""
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
