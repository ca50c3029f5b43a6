"""Ids that came with an answer: are they possible, where are their spans, do they say what the text says."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pipeline.answers.assemble import Built, Span, pack
from pipeline.answers.readings.chat_formats import Thinking
from pipeline.answers.readings.markers import Markers
from pipeline.formats.completion.choices import Answer
from pipeline.formats.completion.structured_calls import Call
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.loading import Tokenizer

_REPLACED = re.compile("�+")


def as_ids(value: Any) -> list[int] | None:
    """The value as a list of ids, or None when it is none."""
    return value if isinstance(value, list) and set(map(type, value)) == {int} else None


def impossible(ids: Sequence[int], record: TargetRecord, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Each id that the model cannot have meant: (code, where and which)."""
    strange = tokenizer.without_text(set(ids)) - set(record.special_tokens.values())
    if not strange:
        return []
    return [
        ("reserved_id", f"position {position} is {token}, a reserved slot")
        if 0 <= token < record.vocab_size
        else ("id_out_of_range", f"position {position} is {token}, the vocabulary has {record.vocab_size}")
        for position, token in enumerate(ids)
        if token in strange
    ]


def spans_of(ids: Sequence[int], record: TargetRecord, markers: Markers, thinking: Thinking) -> Built:
    """Spans of an answer from its ids alone: the special tokens say what each stretch of text is.

    A marker out of place (a call's close where no call is open) is a `special` and changes nothing: servers skip it too.
    """
    named = set(record.special_tokens.values())
    state = _State(
        {token: role for role, (_, token) in markers.roles.items()}, "reasoning" if thinking == "open" else "content"
    )
    spans: list[Span] = []
    start = 0
    for position in [position for position, token in enumerate(ids) if token in named]:
        if position > start:
            spans.append(Span(state.text, start, position))
        start = position + 1
        spans.append(Span(state.after(ids, position), position, start))
    if start < len(ids):
        spans.append(Span(state.text, start, len(ids)))
    return Built(pack(ids), tuple(spans))


class _State:
    """Where in an answer we are."""

    def __init__(self, roles: dict[int, str], text: str) -> None:
        self._roles = roles
        self._has_args = "call_args" in roles.values()
        self.text = text
        """Kind of the text that stands here."""
        self._in_section = self._in_call = False

    def after(self, ids: Sequence[int], position: int) -> str:
        """Step over a special token; return its kind."""
        role = self._roles.get(ids[position], "special")
        if role == "think_open":
            self.text = "reasoning"
        elif role == "think_close":
            self.text = "content"
        elif role == "tools_open":
            self._in_section, self.text = True, "content"
        elif role == "call_open" and not self._in_call and (self._in_section or self._whole_call(ids, position)):
            self._in_call, self.text = True, "call_id" if self._has_args else "call_args"
        elif role == "call_args" and self._in_call and self.text == "call_id":
            self.text = "call_args"
            return "call_args_open"
        elif role == "call_close" and self._in_call:
            self._in_call, self.text = False, "content"
        elif role == "tools_close" and self._in_section:
            self._in_section = self._in_call = False
            self.text = "content"
        elif role != "end":
            return "special"
        return role

    def _whole_call(self, ids: Sequence[int], position: int) -> bool:
        """Whether the markers of a whole call follow: so a call stands even where its section's own marker is missing."""
        following = [role for token in ids[position + 1 :] if (role := self._roles.get(token)) is not None]
        return following[: 2 if self._has_args else 1] == (
            ["call_args", "call_close"] if self._has_args else ["call_close"]
        )


def agrees(answer: Answer, built: Built, ids: Sequence[int], tokenizer: Tokenizer, record: TargetRecord) -> bool:
    """Whether ids say what the text says, but for what servers do to it: white space at the seams, stray special tokens left out, calls written anew."""
    if not answer.has_text:
        return True
    shown = (_plain(answer.reasoning), _plain(answer.content))
    said = _Said(built, ids, tokenizer, record)
    if answer.calls:
        called = said.calls()
        given = (called, [call for call in called if call.closed])  # some servers leave out a call that was not closed
        return shown in (said.skipped(), said.before_calls()) and any(
            _same_calls(answer.calls, [call.text for call in calls]) for calls in given
        )
    return shown in said.versions()


class _Called(NamedTuple):
    """A call as it was emitted."""

    text: str
    """Of its arguments, in some formats with its name."""
    closed: bool


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
        decode = self._tokenizer.decode_bytes  # such a span holds no special token
        return [
            decode(self._ids[start:end]).decode("utf-8", "replace") for name, start, end in self._spans if name == kind
        ]

    def calls(self) -> list["_Called"]:
        """Every call; one may have no arguments."""
        found: list[_Called] = []
        for name, start, end in self._spans:
            if name == "call_open":
                found.append(_Called("", False))
            elif name == "call_args":
                found[-1] = _Called(
                    self._tokenizer.decode_bytes(self._ids[start:end]).decode("utf-8", "replace"), False
                )
            elif name == "call_close":
                found[-1] = found[-1]._replace(closed=True)
        return found

    def skipped(self) -> tuple[str, str]:
        """Reasoning and content, special tokens left out."""
        return _plain("".join(self.texts("reasoning"))), _plain("".join(self.texts("content")))

    def before_calls(self) -> tuple[str, str]:
        """The same without what stands in the tool section beside its calls, and after it: servers drop that."""
        first = next((start for name, start, _ in self._spans if name in ("tools_open", "call_open")), len(self._ids))
        said = b"".join(
            self._tokenizer.decode_bytes(self._ids[start:end])
            for name, start, end in self._spans
            if name == "content" and end <= first
        )
        return self.skipped()[0], _plain(said.decode("utf-8", "replace"))

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
        cut = (
            whole.index(close)
            if close in whole
            else next((start for name, start, _ in self._spans if name == "tools_open"), len(whole))
        )
        yield _plain(self._text(whole[:cut])), _plain(self._text(whole[cut + (close in whole) :]))

    def _text(self, ids: Sequence[int]) -> str:
        return b"".join(self._names.get(token) or self._tokenizer.token_bytes(token) for token in ids).decode(
            "utf-8", "replace"
        )


def _same_calls(calls: Sequence[Call], called: list[str]) -> bool:
    return len(calls) == len(called) and all(map(_same_call, calls, called))


def _same_call(call: Call, text: str) -> bool:
    """Whether a call's emitted text holds the arguments that the server reports."""
    if _plain(call.arguments) in text:
        return True
    before, brace, rest = text.partition("{")
    if call.name and call.name in before:  # DeepSeek writes the name, and a fence around the arguments
        text = brace + rest[: rest.rfind("}") + 1]
    emitted, given = _json(text) if text.strip() else {}, _json(call.arguments)
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
