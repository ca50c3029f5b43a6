"""Where a call's name stands among its ids, in formats that write it beside the arguments."""

import re

from pipeline.answers.assemble import Built, Span, unpack
from pipeline.model.tokenizer.tokenizer import Tokenizer


def with_names(built: Built, name: re.Pattern[bytes], tokenizer: Tokenizer) -> Built:
    """Cut the span of each call's name out of its `call_args`; `name` has the name as its group 1.

    Only the spans change: the name's text was encoded together with what stands around it, as the model writes it. A token that holds a byte of the name
    is the name's. A call that begins otherwise (one cut before its name, say) stays as it is.
    """
    if not any(span.kind == "call_args" for span in built.spans):
        return built
    ids = unpack(built.ids)
    spans: list[Span] = []
    for span in built.spans:
        begins = span.kind == "call_args" and bool(spans) and spans[-1].kind in ("call_open", "call_args_open")
        spans += _cut(span, ids, name, tokenizer) if begins else [span]
    return Built(built.ids, tuple(spans))


def _cut(span: Span, ids: list[int], name: re.Pattern[bytes], tokenizer: Tokenizer) -> list[Span]:
    """A call's text as what stands before its name, the name, and the rest; parts without tokens are left out."""
    pieces = [tokenizer.token_bytes(token) for token in ids[span.start : span.end]]
    found = name.match(b"".join(pieces))
    if found is None:
        return [span]
    starts = [0]
    for piece in pieces:
        starts.append(starts[-1] + len(piece))
    held = [n for n in range(len(pieces)) if starts[n] < found.end(1) and starts[n + 1] > found.start(1)]
    first, last = span.start + held[0], span.start + held[-1] + 1
    parts = [Span("call_args", span.start, first), Span("call_name", first, last), Span("call_args", last, span.end)]
    return [part for part in parts if part.end > part.start]
