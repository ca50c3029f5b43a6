"""Two versions of one row, token by token: where they part, what text stands there, which ids, where they meet again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.model.tokenizer.tokenizer import Tokenizer

CONTEXT = 12
"""Shared tokens shown before the first difference."""
WIDTH = 48
"""Differing tokens shown of each side."""


@dataclass(frozen=True, slots=True)
class Span:
    """Some ids and their text."""

    ids: list[int]
    text: str
    omitted: int
    """Further ids that are not shown."""


@dataclass(frozen=True, slots=True)
class SequenceDiff:
    """Where two id sequences part."""

    shared_start: int
    """Equal tokens before they part: the index of the first that differs."""
    shared_end: int
    """Equal tokens after they meet again."""
    old_length: int
    new_length: int
    before: Span
    """The last shared tokens before they part."""
    old: Span
    new: Span
    same_text: bool
    """Whether both sides spell the same bytes, cut into other tokens."""


@dataclass(frozen=True, slots=True)
class Example:
    """One changed row."""

    id: str
    changed: list[str]
    """prompt, completion, record"""
    prompt: SequenceDiff | None
    completion: SequenceDiff | None
    record: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Changed column to old and new value."""


def _span(ids: Sequence[int], tokenizer: Tokenizer | None, *, width: int = WIDTH) -> Span:
    shown = list(ids[:width])
    text = "" if tokenizer is None else _text(shown, tokenizer)
    return Span(shown, text, len(ids) - len(shown))


def _text(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Text of ids with special tokens by name; bytes that are no whole character are shown as escapes."""
    return b"".join(map(tokenizer.spelled, ids)).decode("utf-8", "backslashreplace")


def _shared(old: Sequence[int], new: Sequence[int]) -> int:
    length = min(len(old), len(new))
    return next((n for n in range(length) if old[n] != new[n]), length)


def sequence_diff(old: Sequence[int], new: Sequence[int], tokenizer: Tokenizer | None) -> SequenceDiff:
    """Compare two id sequences; the shared start is the longest, and then the shared end of what is left.

    Args:
        old: ids of the older version.
        new: ids of the newer one.
        tokenizer: gives the text; None leaves it empty.

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


def example(
    old: dict[str, Any], new: dict[str, Any], changed: list[str], columns: Sequence[str], tokenizer: Tokenizer | None
) -> Example:
    """Compare two versions of one row of tokens.parquet."""

    def diff(name: str) -> SequenceDiff | None:
        return sequence_diff(old[name], new[name], tokenizer) if old[name] != new[name] else None

    return Example(
        id=old["id"],
        changed=changed,
        prompt=diff("prompt_ids"),
        completion=diff("completion_ids"),
        record={name: (old[name], new[name]) for name in columns if name != "segments" and old[name] != new[name]},
    )
