"""Spans for the names of calls, in chat formats that write the name beside the arguments."""

import re

from pipeline.answers.segmented_ids import SegmentedIds, Span, unpack
from pipeline.model.tokenizer.tokenizer import Tokenizer


def with_names(segmented: SegmentedIds, name: re.Pattern[bytes], tokenizer: Tokenizer) -> SegmentedIds:
    """Cut the span of each call's name out of its `call_args`; group 1 of `name` matches the name.

    Only the spans change: the model writes the name and the text around it in one piece, so they were encoded together.
    A token that holds a byte of the name belongs to the name. A call that begins in another way, such as one cut before
    its name, keeps its span.
    """
    if not any(span.kind == "call_args" for span in segmented.spans):
        return segmented
    ids = unpack(segmented.ids)
    spans: list[Span] = []
    for span in segmented.spans:
        starts_call = span.kind == "call_args" and bool(spans) and spans[-1].kind in ("call_open", "call_args_open")
        spans += _cut(span, ids, name, tokenizer) if starts_call else [span]
    return SegmentedIds(segmented.ids, tuple(spans))


def _cut(span: Span, ids: list[int], name: re.Pattern[bytes], tokenizer: Tokenizer) -> list[Span]:
    """Cut a call's span into the text before its name, the name, and the rest; parts without tokens are left out."""
    pieces = [tokenizer.token_bytes(token) for token in ids[span.start : span.end]]
    match = name.match(b"".join(pieces))
    if match is None:
        return [span]
    starts = [0]
    for piece in pieces:
        starts.append(starts[-1] + len(piece))
    name_tokens = [n for n in range(len(pieces)) if starts[n] < match.end(1) and starts[n + 1] > match.start(1)]
    first, last = span.start + name_tokens[0], span.start + name_tokens[-1] + 1
    parts = [Span("call_args", span.start, first), Span("call_name", first, last), Span("call_args", last, span.end)]
    return [part for part in parts if part.end > part.start]
