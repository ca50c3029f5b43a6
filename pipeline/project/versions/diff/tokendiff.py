"""Two versions of one row, token by token: shared start, differing ids with their text, shared end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.model.tokenizer.tokenizer import Tokenizer

CONTEXT = 12
"""Number of shared tokens shown before the first difference."""
WIDTH = 48
"""Number of differing tokens shown of each side."""


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Consecutive token ids and their text."""

    ids: list[int]
    text: str
    omitted: int
    """Number of further ids that are not shown."""


@dataclass(frozen=True, slots=True)
class SequenceDiff:
    """The difference of two sequences of token ids."""

    shared_start: int
    """Number of equal tokens at the start: the index of the first that differs."""
    shared_end: int
    """Number of equal tokens at the end."""
    old_length: int
    new_length: int
    before: TokenSpan
    """The last shared tokens before the first difference."""
    old: TokenSpan
    new: TokenSpan
    same_text: bool
    """Both sides are the same bytes, cut into other tokens."""


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """One row that both versions have, with other content."""

    id: str
    changed: list[str]
    """Parts that differ: prompt, completion, record."""
    prompt: SequenceDiff | None
    completion: SequenceDiff | None
    record: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Changed column to old and new value."""


def _span(ids: Sequence[int], tokenizer: Tokenizer | None, *, width: int = WIDTH) -> TokenSpan:
    shown = list(ids[:width])
    text = "" if tokenizer is None else _text(shown, tokenizer)
    return TokenSpan(shown, text, len(ids) - len(shown))


def _text(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Return the text of ids: special tokens by name, bytes that are not a whole character as escapes."""
    return b"".join(map(tokenizer.spelled, ids)).decode("utf-8", "backslashreplace")


def _shared(old: Sequence[int], new: Sequence[int]) -> int:
    length = min(len(old), len(new))
    return next((n for n in range(length) if old[n] != new[n]), length)


def sequence_diff(old: Sequence[int], new: Sequence[int], tokenizer: Tokenizer | None) -> SequenceDiff:
    """Compare two sequences of ids: the longest shared start first, then the longest shared end of the rest.

    Args:
        old: ids of the older version.
        new: ids of the newer version.
        tokenizer: decodes the ids; None leaves the text empty.

    """
    start = _shared(old, new)
    end = _shared(old[start:][::-1], new[start:][::-1])
    left, right = old[start : len(old) - end], new[start : len(new) - end]
    return SequenceDiff(
        shared_start=start,
        shared_end=end,
        old_length=len(old),
        new_length=len(new),
        before=_span(old[max(0, start - CONTEXT) : start], tokenizer),
        old=_span(left, tokenizer),
        new=_span(right, tokenizer),
        same_text=tokenizer is not None
        and left != right
        and tokenizer.special_tokens_and_bytes(left) == tokenizer.special_tokens_and_bytes(right),
    )


def changed_row(
    old: dict[str, Any], new: dict[str, Any], changed: list[str], columns: Sequence[str], tokenizer: Tokenizer | None
) -> ChangedRow:
    """Compare two versions of one row of tokens.parquet.

    Args:
        old: the row in the older version, column to value.
        new: the row in the newer version.
        changed: parts that differ, as in `ChangedRow.changed`.
        columns: columns of the part `record`.
        tokenizer: as in `sequence_diff`.

    """

    def diff(name: str) -> SequenceDiff | None:
        return sequence_diff(old[name], new[name], tokenizer) if old[name] != new[name] else None

    return ChangedRow(
        id=old["id"],
        changed=changed,
        prompt=diff("prompt_ids"),
        completion=diff("completion_ids"),
        record={name: (old[name], new[name]) for name in columns if name != "segments" and old[name] != new[name]},
    )
