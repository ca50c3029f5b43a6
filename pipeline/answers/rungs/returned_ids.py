"""Token ids that a server returned: possible or not, their spans, and whether they say what the text says."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pipeline.answers.readings.chat_formats import Thinking
from pipeline.answers.readings.markers import Markers
from pipeline.answers.segmented_ids import SegmentedIds, Span, pack
from pipeline.formats.completion.choices import Answer
from pipeline.formats.completion.structured_calls import Call
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer

_REPLACED = re.compile("�+")


def as_ids(value: Any) -> list[int] | None:
    """Return the value if it is a list of ids, else None."""
    return value if isinstance(value, list) and set(map(type, value)) == {int} else None


def impossible(ids: Sequence[int], record: TargetRecord, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Return each id that the model cannot have emitted: its code, and its position and value in words."""
    without_text = tokenizer.without_bytes(set(ids)) - set(record.special_tokens.values())
    if not without_text:
        return []
    return [
        ("reserved_id", f"position {position} is {token}, a reserved slot")
        if 0 <= token < record.vocab_size
        else ("id_out_of_range", f"position {position} is {token}, the vocabulary has {record.vocab_size}")
        for position, token in enumerate(ids)
        if token in without_text
    ]


def spans_of(ids: Sequence[int], record: TargetRecord, markers: Markers, thinking: Thinking) -> SegmentedIds:
    """Return an answer's ids with their spans: the special tokens alone say what each stretch of text is.

    A marker out of place, such as a call's close where no call is open, has the kind `special` and changes nothing;
    servers skip it too.
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
    return SegmentedIds(pack(ids), tuple(spans))


class _State:
    """Position in the grammar of an answer while its ids are read."""

    def __init__(self, roles: dict[int, str], text: str) -> None:
        self._roles = roles
        self._has_args = "call_args" in roles.values()
        self.text = text
        """Kind of the text at this position."""
        self._in_section = self._in_call = False

    def after(self, ids: Sequence[int], position: int) -> str:
        """Move past a special token; return its kind."""
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
        """Return whether the markers of a whole call follow.

        They count as a call even without the opening marker of the section.
        """
        following = [role for token in ids[position + 1 :] if (role := self._roles.get(token)) is not None]
        return following[: 2 if self._has_args else 1] == (
            ["call_args", "call_close"] if self._has_args else ["call_close"]
        )


def agrees(
    answer: Answer, segmented: SegmentedIds, ids: Sequence[int], tokenizer: Tokenizer, record: TargetRecord
) -> bool:
    """Return whether ids say what the text says.

    Differences that servers are known to make are allowed: white space cut at the seams, special tokens left out, calls
    written anew.
    """
    if not answer.has_text:
        return True
    shown = (_plain(answer.reasoning), _plain(answer.content))
    texts = _ShownTexts(segmented, ids, tokenizer, record)
    if answer.calls:
        emitted_calls = texts.calls()
        versions = (
            emitted_calls,
            [call for call in emitted_calls if call.closed],
        )  # some servers leave out a call that was not closed
        return shown in (texts.without_markers(), texts.before_calls()) and any(
            _same_calls(answer.calls, [call.text for call in calls]) for calls in versions
        )
    return shown in texts.versions()


class _EmittedCall(NamedTuple):
    """A call as the model emitted it."""

    text: str
    """Text of its arguments; in some formats it holds the name too."""
    closed: bool


class _ShownTexts:
    """The texts that servers make of an answer's ids."""

    def __init__(self, segmented: SegmentedIds, ids: Sequence[int], tokenizer: Tokenizer, record: TargetRecord) -> None:
        self._spans = segmented.spans
        self._ids = ids
        self._tokenizer = tokenizer
        self._end = record.role_id("end")
        self._names = {token: text.encode() for text, token in record.special_tokens.items()}
        self._named = (record.role_id("think_open"), record.role_id("think_close"))

    def texts(self, kind: str) -> list[str]:
        """Return the text of each span of a kind."""
        decode = self._tokenizer.decode_bytes  # such a span holds no special token
        return [
            decode(self._ids[start:end]).decode("utf-8", "replace") for name, start, end in self._spans if name == kind
        ]

    def calls(self) -> list["_EmittedCall"]:
        """Return each call; the text of one without arguments is empty."""
        calls: list[_EmittedCall] = []
        for name, start, end in self._spans:
            if name == "call_open":
                calls.append(_EmittedCall("", False))
            elif name == "call_args":
                calls[-1] = _EmittedCall(
                    self._tokenizer.decode_bytes(self._ids[start:end]).decode("utf-8", "replace"), False
                )
            elif name == "call_close":
                calls[-1] = calls[-1]._replace(closed=True)
        return calls

    def without_markers(self) -> tuple[str, str]:
        """Return reasoning and content without special tokens."""
        return _plain("".join(self.texts("reasoning"))), _plain("".join(self.texts("content")))

    def before_calls(self) -> tuple[str, str]:
        """Return reasoning and content without the text inside and after the tool section, which servers drop."""
        first = next((start for name, start, _ in self._spans if name in ("tools_open", "call_open")), len(self._ids))
        content = b"".join(
            self._tokenizer.decode_bytes(self._ids[start:end])
            for name, start, end in self._spans
            if name == "content" and end <= first
        )
        return self.without_markers()[0], _plain(content.decode("utf-8", "replace"))

    def versions(self) -> Iterator[tuple[str, str]]:
        """Yield reasoning and content in each way in which servers without structured calls show them.

        All but the first spell special tokens out.
        """
        if not any(name == "call_open" for name, _, _ in self._spans):
            yield self.without_markers()
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


def _same_calls(calls: Sequence[Call], emitted: list[str]) -> bool:
    return len(calls) == len(emitted) and all(map(_same_call, calls, emitted))


def _same_call(call: Call, text: str) -> bool:
    """Return whether the text of an emitted call holds the arguments that the server reports."""
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
    """Return the text without white space at its ends, and with each run of undecodable characters as one."""
    return _REPLACED.sub("�", text.strip())
