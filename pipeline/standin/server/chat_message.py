"""The chat message of sampled ids, made as a serving engine with a reasoning and a tool parser makes it.

Text loses the same things as there: special tokens are skipped, and bytes that are not UTF-8 become U+FFFD.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.standin.server.embedded_providers import EmbeddedProvider


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """The ids of an answer, taken apart; markers are left out except in ``raw``."""

    reasoning: list[int]
    content: list[int]
    calls: list[tuple[list[int], list[int]]]
    """Header and arguments of each complete tool call."""
    raw: list[int]
    """The content and everything after it, markers included."""


def take_apart(record: TargetRecord, ids: Sequence[int], *, with_tools: bool) -> AnswerParts:
    """Split ids at the markers: the first think-close or a tool section ends the reasoning, a section the content."""
    body = list(ids[:-1] if ids and ids[-1] == record.role_id("end") else ids)
    opened, closed = record.role_id("tools_open"), record.role_id("think_close")
    cut = next((at for at, token in enumerate(body) if token == closed or (with_tools and token == opened)), len(body))
    rest = body[cut + 1 :] if cut < len(body) and body[cut] == closed else body[cut:]
    section = rest.index(opened) if with_tools and opened in rest else len(rest)
    return AnswerParts(body[:cut], rest[:section], _calls(record, rest[section:]), rest)


def _calls(record: TargetRecord, section: list[int]) -> list[tuple[list[int], list[int]]]:
    """Return the complete calls of a tool section; a call cut short or without arguments is dropped."""
    calls = []
    opened, middle, closed = (record.role_id(role) for role in ("call_open", "call_args", "call_close"))
    at = 0
    while opened in section[at:]:
        start = section.index(opened, at) + 1
        if closed not in section[start:]:
            break
        at = section.index(closed, start)
        call = section[start:at]
        if middle in call:
            calls.append((call[: call.index(middle)], call[call.index(middle) + 1 :]))
    return calls


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of ids; special tokens are skipped."""
    return tokenizer.decode_bytes(ids).decode("utf-8", "replace")


def text_with_markers(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of ids; special tokens appear as their names."""
    return b"".join(map(tokenizer.spelled, ids)).decode("utf-8", "replace")


def make_message(
    tokenizer: Tokenizer, provider: EmbeddedProvider, parts: AnswerParts, stop: str | None, *, with_tools: bool
) -> dict[str, Any]:
    """Return the assistant's message with the provider's habits; it ends before the stop text."""
    reasoning, content = text_of(tokenizer, parts.reasoning), text_of(tokenizer, parts.content)
    calls = [
        _structured(tokenizer, number, header, arguments) for number, (header, arguments) in enumerate(parts.calls)
    ]
    if provider.raw_tools and with_tools:
        content, calls = text_with_markers(tokenizer, parts.raw), []
    if stop is not None:
        if parts.raw:
            content = content.partition(stop)[0]
        else:
            reasoning = reasoning.partition(stop)[0]
    if provider.trims:
        reasoning, content = reasoning.rstrip(), content.strip()
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content or None,
        "refusal": None,
        "reasoning": reasoning or None,
    }
    if reasoning:
        message["reasoning_details"] = [
            {
                "type": "reasoning.text",
                "text": reasoning,
                "signature": None,
                "id": None,
                "format": "unknown",
                "index": 0,
            }
        ]
    if calls:
        message["tool_calls"] = calls
    return message


def _structured(tokenizer: Tokenizer, number: int, header: list[int], arguments: list[int]) -> dict[str, Any]:
    """Return a call in the API's form: the id as the model wrote it, the arguments byte for byte."""
    ident = text_of(tokenizer, header)
    name = ident.strip().rpartition(":")[0].partition(".")[2] or ident.strip()
    return {
        "id": ident.strip(),
        "type": "function",
        "index": number,
        "function": {"name": name, "arguments": text_of(tokenizer, arguments)},
    }


def logprob_entries(
    tokenizer: Tokenizer, ids: Sequence[int], chances: Sequence[float], likely: Sequence[Sequence[tuple[int, float]]]
) -> list[dict[str, Any]]:
    """Return one entry for each sampled id: its text, its true bytes, its log probability, and likely others."""
    return [
        {**_entry(tokenizer, token, chance), "top_logprobs": [_entry(tokenizer, *other) for other in others]}
        for token, chance, others in zip(ids, chances, likely, strict=True)
    ]


def _entry(tokenizer: Tokenizer, token: int, chance: float) -> dict[str, Any]:
    piece = tokenizer.spelled(token)
    return {"token": piece.decode("utf-8", "replace"), "bytes": list(piece), "logprob": chance}
