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


def agrees(answer: Answer, built: Built, ids: Sequence[int], tokenizer: Tokenizer, record: TargetRecord) -> bool:
    """Whether ids say what the text says, but for what servers do to it: white space at the seams, stray special tokens left out, calls written anew."""
    if not answer.has_text:
        return True
    shown = (_plain(answer.reasoning), _plain(answer.content))
    said = _Said(built, ids, tokenizer, record)
    if answer.calls:
        called = said.texts("call_args")
        return shown == said.skipped() and len(called) == len(answer.calls) and all(map(_same_call, answer.calls, called))
    return shown in said.versions()


class _Said:
    """What ids say, as the texts that servers make of them."""

    def __init__(self, built: Built, ids: Sequence[int], tokenizer: Tokenizer, record: TargetRecord) -> None:
        self._spans = built.spans
        self._ids = ids
        self._tokenizer = tokenizer
        self._end = record.role_id("end")
        self._names = {token: text.encode() for text, token in record.special_tokens.items()}
        self._named = (record.role_id("think_open"), record.role_id("think_close"))

    def texts(self, kind: str) -> list[str]:
        """Text of every span of a kind."""
        return [self._text(self._ids[start:end]) for name, start, end in self._spans if name == kind]

    def skipped(self) -> tuple[str, str]:
        """Reasoning and content, special tokens left out."""
        return _plain("".join(self.texts("reasoning"))), _plain("".join(self.texts("content")))

    def versions(self) -> Iterator[tuple[str, str]]:
        """Reasoning and content in every way that servers without structured calls show them; in the rest, special tokens are spelled out."""
        if not any(name == "call_open" for name, _, _ in self._spans):
            yield self.skipped()
        opened, close = self._named
        whole = [token for token in self._ids if token != self._end]
        spelled = _plain(self._text(whole))
        yield "", spelled
        yield spelled, ""
        if opened is not None and whole and whole[0] == opened:
            whole = whole[1:]
            yield "", _plain(self._text(whole))
        cut = whole.index(close) if close in whole else next((start for name, start, _ in self._spans if name == "tools_open"), len(whole))
        yield _plain(self._text(whole[:cut])), _plain(self._text(whole[cut + (close in whole) :]))

    def _text(self, ids: Sequence[int]) -> str:
        return b"".join(self._names.get(token) or self._tokenizer.token_bytes(token) for token in ids).decode("utf-8", "replace")


def _same_call(call: Call, text: str) -> bool:
    """Whether a call's emitted text holds the arguments that the server reports."""
    if _plain(call.arguments) in text:
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
