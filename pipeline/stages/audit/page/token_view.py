"""The view of a completion as tokens: by segment, with special tokens and parts of characters marked."""

from typing import Any

from pipeline.core.html.markup import Html, tag
from pipeline.stages.audit.inputs.context import Context

WINDOW = 320
"""Most tokens that are shown of a row. Of a longer row the part around its first finding is shown."""


def token_html(context: Context, token: int, position: int, hit: bool) -> Html:
    """Return the element of one token, whose title has position and id; ``hit`` marks the position of a finding."""
    size = len(context.pieces)
    title = f"{position}: id {token}"
    mark = " h" if hit else ""
    if not 0 <= token < size:
        return tag("i", f"{token}?", title=f"{title}, outside the vocabulary", class_=f"x{mark}")
    piece = context.pieces[token]
    if not piece:
        name = context.tokenizer.special_texts.get(token, f"reserved {token}")
        return tag("i", name, title=title, class_=f"s{mark}")
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return tag("i", f"<{piece.hex(' ')}>", title=f"{title}, part of a character", class_=f"b{mark}")
    return tag("i", text.replace("\n", "\u21b5\n").replace("\t", "\u2192\t"), title=title, class_=mark.strip() or None)


def window(length: int, position: int | None) -> tuple[int, int]:
    """Return the [start, end) of the tokens to show, around a position or from the first token."""
    if length <= WINDOW:
        return 0, length
    start = min(max((position or 0) - WINDOW // 2, 0), length - WINDOW)
    return start, start + WINDOW


def parts_of(segments: list[dict[str, Any]], length: int) -> list[tuple[str, int, int]]:
    """Return segments as (kind, start, end); a stretch that no segment covers has the kind `answer`."""
    parts, at = [], 0
    for segment in segments:
        start, end = max(segment["start"], at), min(segment["end"], length)
        if start > at:
            parts.append(("answer", at, start))
        if end > start:
            parts.append((segment["kind"], start, end))
            at = end
    return [*parts, ("answer", at, length)] if at < length else parts


def view(context: Context, ids: list[int], segments: list[dict[str, Any]], hits: set[int]) -> Html:
    """Return the tokens of a row by segment; those at the positions ``hits`` are highlighted."""
    first, last = window(len(ids), min(hits, default=None))
    blocks = []
    for kind, start, end in parts_of(segments, len(ids)):
        shown = range(max(start, first), min(end, last))
        if not shown:
            continue
        tokens = [token_html(context, ids[position], position, position in hits) for position in shown]
        missing = "" if len(shown) == end - start else f", {len(shown)} of them shown"
        label = tag("small", f"{kind}, {end - start} token{'s' if end - start > 1 else ''}{missing}")
        blocks.append(
            tag(
                "div",
                label,
                tag("div", *tokens, class_="toks"),
                class_=f"seg {kind if kind.replace('_', '').isalpha() else 'other'}",
            )
        )
    if (first, last) != (0, len(ids)):
        blocks.append(
            tag("p", f"Tokens {first} to {last - 1} of {len(ids)}; `--explain` shows all.", class_="soft small")
        )
    return tag("div", *blocks)
