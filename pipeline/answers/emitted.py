"""Ids that came with an answer: are they possible, where are their spans, do they say what the text says."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.answers.answer import Answer, Call
from pipeline.answers.assemble import Built, Span, pack
from pipeline.answers.formats import Thinking
from pipeline.answers.markers import Markers
from pipeline.schema.target import TargetRecord
from pipeline.tokens import Tokenizer

_AFTER = {
    "think_open": "reasoning",
    "think_close": "content",
    "tools_open": "content",
    "call_args": "call_args",
    "call_close": "content",
    "tools_close": "content",
}
"""Kind of the text that follows a marker."""

_REPLACED = re.compile("�+")


def as_ids(value: Any) -> list[int] | None:
    """The value as a list of ids, or None when it is none."""
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return value
    return None


def impossible(ids: Sequence[int], record: TargetRecord, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Each id that the model cannot have meant: (code, where and which)."""
    faults = []
    named = set(record.special_tokens.values())
    for position, token in enumerate(ids):
        if not 0 <= token < record.vocab_size:
            faults.append(("id_out_of_range", f"position {position} is {token}, the vocabulary has {record.vocab_size}"))
        elif token not in named and not tokenizer.token_bytes(token):
            faults.append(("reserved_id", f"position {position} is {token}, a reserved slot"))
    return faults


def spans_of(ids: Sequence[int], record: TargetRecord, markers: Markers, thinking: Thinking) -> Built:
    """Spans of an answer from its ids alone: the special tokens say what each stretch of text is."""
    role_of = {token: role for role, (_, token) in markers.roles.items()}
    named = set(record.special_tokens.values())
    named_text = "call_id" if "call_args" in markers.roles else "call_args"
    kind = "reasoning" if thinking == "open" else "content"
    spans: list[Span] = []
    for position, token in enumerate(ids):
        if token not in named:
            if spans and spans[-1].kind == kind and spans[-1].end == position:
                spans[-1] = Span(kind, spans[-1].start, position + 1)
            else:
                spans.append(Span(kind, position, position + 1))
            continue
        role = role_of.get(token, "special")
        spans.append(Span("call_args_open" if role == "call_args" else role, position, position + 1))
        kind = named_text if role == "call_open" else _AFTER.get(role, kind)
    return Built(pack(ids), tuple(spans))


def texts_of(built: Built, ids: Sequence[int], tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
    """(kind, text) of every stretch of text; bytes that are no UTF-8 become U+FFFD, as servers show them."""
    structural = {"think_open", "think_close", "tools_open", "tools_close", "call_open", "call_args_open", "call_close", "end", "special"}
    for kind, start, end in built.spans:
        if kind not in structural:
            yield kind, tokenizer.decode_bytes(ids[start:end]).decode("utf-8", "replace")


def agrees(answer: Answer, built: Built, ids: Sequence[int], tokenizer: Tokenizer, markers: Markers) -> bool:
    """Whether ids say what the text says, but for what servers do to it: white space at the seams, names and spacing of calls."""
    if not answer.has_text:
        return True
    emitted = [(kind, _plain(text)) for kind, text in texts_of(built, ids, tokenizer) if kind != "call_id"]
    emitted = [(kind, text) for kind, text in emitted if text]
    spoken = [text for kind, text in emitted if not kind.startswith("call")]
    called = [text for kind, text in emitted if kind == "call_args"]
    fields = [text for text in (_plain(answer.reasoning), _plain(answer.content)) if text]
    if answer.calls and len(called) == len(answer.calls) and all(map(_same_call, answer.calls, called)):
        return spoken == fields or spoken == _without_markers(answer, markers, keep_calls=False)
    if answer.calls:
        return False
    everything = [text for _, text in emitted]
    return everything in (fields, _without_markers(answer, markers, keep_calls=True))


def _without_markers(answer: Answer, markers: Markers, *, keep_calls: bool) -> list[str]:
    """The fields cut at every spelled-out special token; names of calls are left out, as servers rewrite them."""
    texts: list[str] = []
    for field in (answer.reasoning, answer.content):
        role, position = None, 0
        for match in markers.named.finditer(field):
            _add(texts, field[position : match.start()], role, keep_calls=keep_calls, markers=markers)
            role, position = markers.role_of(match.group()), match.end()
        _add(texts, field[position:], role, keep_calls=keep_calls, markers=markers)
    return texts


def _add(texts: list[str], text: str, role: str | None, *, keep_calls: bool, markers: Markers) -> None:
    is_name = role == "call_open" and "call_args" in markers.roles
    if (plain := _plain(text)) and not is_name and (keep_calls or role != "call_args"):
        texts.append(plain)


def _same_call(call: Call, text: str) -> bool:
    """Whether a call's emitted text holds the arguments that the server reports."""
    if text == _plain(call.arguments) or _plain(call.arguments) in text:
        return True
    emitted, given = _json(text), _json(call.arguments)
    if isinstance(emitted, dict) and "arguments" in emitted and emitted.get("name") == call.name:
        return bool(emitted["arguments"] == given)
    return emitted is not _NOT_JSON and bool(emitted == given)


_NOT_JSON = object()


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _plain(text: str) -> str:
    """Text without white space at its ends, and with every run of undecodable characters as one."""
    return _REPLACED.sub("�", text.strip())
