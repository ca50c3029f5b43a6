"""A completion's body to a typed reply: every shape met in practice, and no exception for any other."""

import json
from collections.abc import Iterator
from typing import Any

from pipeline.core.describe import found
from pipeline.formats.completion.answer import Answer, Bill, Call, Finish, Reply

STOPS = frozenset({"stop", "tool_calls", "function_call", "end_turn", "eos", "eos_token", "stop_sequence", "tool_use"})
LENGTHS = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
NOT_RAW = ("summary", "encrypted", "redacted")
"""In the type of a block of reasoning: someone else wrote it, or nobody can read it."""
THOUGHTS = ("thinking", "reasoning")
"""How the type of a part of `content` begins that holds reasoning."""


class _UnusableError(Exception):
    """A field that cannot be read as what it should be; the arguments are the reject code and, where there is more to say, what was found."""


def parse_body(body: Any) -> Reply:
    """Read a chat (or text) completion body of OpenRouter, OpenAI, vLLM, SGLang, Fireworks and their like."""
    if not isinstance(body, dict):
        return _no_completion(f"the body is {found(body)}")
    provider = _word(body.get("provider"))
    bill = bill_of(body.get("usage"))
    choices = body.get("choices")
    if body.get("error"):
        partial = isinstance(choices, list) and any(isinstance(c, dict) and _has_text(c) for c in choices)
        return Reply(provider, bill, rejects=("provider_error", *(("partial_text",) if partial else ())))
    if choices is None and isinstance(body.get("text"), str) and isinstance(body.get("meta_info"), dict):
        body, choices, bill = _native(body)
    if not isinstance(choices, list) or not choices:
        return _no_completion(
            f"`choices` is {found(choices)}" if "choices" in body else f"the body is {found(body)}", provider, bill
        )
    if bill.tokens is None and len(choices) == 1 and isinstance(choices[0], dict):
        own = bill_of(choices[0].get("usage"))
        bill = Bill(own.tokens, (*bill.notes, *own.notes))
    return Reply(
        provider, bill, tuple(_answer(choice, number, body) for number, choice in enumerate(_in_order(choices)))
    )


def _no_completion(what: str, provider: str | None = None, bill: Bill = Bill()) -> Reply:  # noqa: B008 -- immutable
    return Reply(provider, bill, rejects=("not_a_completion",), notes=(f"not_a_completion: {what}",))


def _native(body: dict[str, Any]) -> tuple[dict[str, Any], list[Any], Bill]:
    """A body of SGLang's own `/generate`, as a text completion."""
    meta = body["meta_info"]
    logprobs = meta.get("output_token_logprobs")
    sampled = (
        [entry[1] for entry in logprobs if isinstance(entry, list) and len(entry) > 1]
        if isinstance(logprobs, list)
        else []
    )
    choice = {
        "text": body["text"],
        "finish_reason": meta.get("finish_reason"),
        "logprobs": {"token_ids": sampled} if sampled else None,
    }
    return body, [choice], bill_of(meta)


def _in_order(items: list[Any]) -> list[Any]:
    """Choices, or calls, by their `index`, where each has one of its own."""
    if len(items) < 2:
        return items
    places = [item.get("index") if isinstance(item, dict) else None for item in items]
    numbered = all(type(place) is int for place in places) and len(set(places)) == len(places)
    return sorted(items, key=lambda item: item["index"]) if numbered else items


def bill_of(usage: Any) -> Bill:
    """Completion tokens, with the reasoning counted in, whatever the server's habit.

    Some report reasoning beside the completion: then total - prompt is their sum, and that is what was emitted.
    """
    if not isinstance(usage, dict):
        return Bill(notes=() if usage is None else (f"count_unusable: usage is {found(usage)}",))
    key = "completion_tokens" if "completion_tokens" in usage else "output_tokens"
    completion = _count(usage.get(key))
    details = usage.get("completion_tokens_details")
    reasoning = (
        _count(details.get("reasoning_tokens")) if isinstance(details, dict) else _count(usage.get("reasoning_tokens"))
    )
    total, prompt = _count(usage.get("total_tokens")), _count(usage.get("prompt_tokens", usage.get("input_tokens")))
    emitted = total - prompt if total is not None and prompt is not None else None
    if completion is None:
        odd = () if usage.get(key) is None else (f"count_unusable: {key} is {found(usage[key])}",)
        return (
            Bill(emitted, (*odd, "billed_as_total_minus_prompt"))
            if emitted is not None and emitted >= 0
            else Bill(notes=odd)
        )
    if reasoning and emitted == completion + reasoning:
        return Bill(emitted, ("usage_disjoint",))
    return Bill(completion)


def _answer(choice: Any, position: int, body: dict[str, Any]) -> Answer:
    if not isinstance(choice, dict):
        return Answer(
            position, rejects=("not_a_completion",), notes=(f"not_a_completion: the choice is {found(choice)}",)
        )
    word = _word(choice.get("finish_reason"))
    finish = _finish(word, _word(choice.get("native_finish_reason")))
    if choice.get("error") or word == "error":
        return Answer(
            position,
            finish=finish,
            finish_reason=word,
            rejects=("provider_error", *(("partial_text",) if _has_text(choice) else ())),
        )
    given = tuple(_given(choice, position, body))
    try:
        return _texts(choice, position, finish, word, given)
    except _UnusableError as error:
        code, *details = error.args
        notes = tuple(f"{code}: {detail}" for detail in details)
        return Answer(
            position,
            finish=finish,
            finish_reason=word,
            given=given,
            logprobs=choice.get("logprobs"),
            rejects=(code,),
            notes=notes,
        )


def _texts(
    choice: dict[str, Any], position: int, finish: Finish, word: str | None, given: tuple[tuple[str, Any], ...]
) -> Answer:
    message = choice.get("message")
    if message is None and isinstance(choice.get("text"), str):
        message = {"content": choice["text"]}
    if not isinstance(message, dict):
        raise _UnusableError(
            "not_a_completion",
            f"`message` is {found(message)}" if "message" in choice else f"the choice is {found(choice)}",
        )
    content, thoughts, readable = _parts(message.get("content"))
    reasoning, other, raw = _reasoning(message, thoughts)
    rejects = [] if raw and readable else ["reasoning_not_raw"]
    if not content and isinstance(message.get("refusal"), str) and message["refusal"]:
        rejects.append("refusal")
    if word == "content_filter":
        rejects.append("content_filter")
    calls = tuple(_calls(message))
    if not (
        _is_unicode(reasoning)
        and _is_unicode(content)
        and _is_unicode(other or "")
        and all(map(_is_unicode, _call_texts(calls)))
    ):
        raise _UnusableError("text_not_utf8")
    return Answer(
        position, reasoning, content, calls, finish, word, other, tuple(rejects), given, choice.get("logprobs")
    )


def _call_texts(calls: tuple[Call, ...]) -> Iterator[str]:
    return (text for call in calls for text in (call.id, call.name, call.arguments))


def _reasoning(message: dict[str, Any], thoughts: str) -> tuple[str, str | None, bool]:
    """Reasoning, a contradicting second text, and whether it is the model's own words."""
    named = [
        text for text in (_text(message.get("reasoning")), _text(message.get("reasoning_content")), thoughts) if text
    ]
    details = message.get("reasoning_details")
    raw = True
    if details and isinstance(details, list):
        blocks = [block for block in details if isinstance(block, dict)]
        raw = not any(word in str(block.get("type")) for block in blocks for word in NOT_RAW)
        numbered = all(type(block.get("index")) is int for block in blocks)
        orders = (sorted(blocks, key=lambda block: block["index"]) if numbered else blocks, blocks)
        named += [joined for ordered in orders if (joined := "".join(map(_thought, ordered)))]
    first = named[0] if named else ""
    return first, next((text for text in named if text != first), None), raw


def _thought(block: dict[str, Any]) -> str:
    """Text of a block of reasoning; nothing for a block that holds none of the model's words."""
    if any(word in str(block.get("type")) for word in NOT_RAW):
        return ""
    return _text(next((block[key] for key in ("text", "thinking") if block.get(key) is not None), None))


def _calls(message: dict[str, Any]) -> Iterator[Call]:
    listed = message.get("tool_calls")
    legacy = message.get("function_call")
    if not listed and isinstance(legacy, dict):
        listed = [{"function": legacy}]
    if listed is None:
        return
    if isinstance(listed, dict):
        listed = [listed]
    if not isinstance(listed, list):
        raise _UnusableError("tool_call_malformed", f"`tool_calls` is {found(listed)}")
    for item in _in_order(listed):
        function = item.get("function", item) if isinstance(item, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _UnusableError("tool_call_malformed", f"the call is {found(item)}")
        arguments, name = function.get("arguments"), function["name"]
        native = item.get("id")
        try:
            text = (
                arguments
                if isinstance(arguments, str)
                else ""
                if arguments is None
                else json.dumps(arguments, ensure_ascii=False)
            )
        except RecursionError:
            raise _UnusableError("tool_call_malformed") from None
        yield Call(
            native if isinstance(native, str) else "" if native is None else str(native),
            name,
            text,
            arguments is None or isinstance(arguments, str),
        )


def _given(choice: dict[str, Any], position: int, body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every place where servers put the ids that they sampled."""
    message = choice.get("message")
    for holder in (choice, message if isinstance(message, dict) else {}):
        for key in ("token_ids", "response_token_ids", "completion_token_ids", "output_ids"):
            if holder.get(key):
                yield key, holder[key]
    raw = choice.get("raw_output")
    if isinstance(raw, dict) and raw.get("completion_token_ids"):
        yield "raw_output.completion_token_ids", raw["completion_token_ids"]
    extension = body.get("sglext")
    if isinstance(extension, dict) and isinstance(lists := extension.get("output_ids"), list) and lists:
        if isinstance(lists[0], list):
            if position < len(lists):
                yield "sglext.output_ids", lists[position]
        elif position == 0:
            yield "sglext.output_ids", lists
    for key in ("output_ids", "token_ids"):
        if position == 0 and body.get(key):
            yield key, body[key]


def _finish(word: str | None, native: str | None) -> Finish:
    words = {w.lower() for w in (word, native) if w}
    if words & LENGTHS:
        return "length"
    return "stop" if words & STOPS else "unknown"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_part(part) for part in value)
    return _part(value)


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    raise _UnusableError("content_not_text", f"a text is needed, found is {found(part)}")


def _parts(value: Any) -> tuple[str, str, bool]:
    """Text and reasoning of `content`, which is one text or a list of parts, some of which may hold reasoning; and whether none of it is unreadable."""
    if not isinstance(value, list):
        return _text(value), "", True
    kinds = [str(part.get("type")) if isinstance(part, dict) else "" for part in value]
    unreadable = [any(word in kind for word in NOT_RAW) for kind in kinds]
    thoughts = [kind.startswith(THOUGHTS) for kind in kinds]
    texts = (
        _part(part)
        for part, thought, hidden in zip(value, thoughts, unreadable, strict=True)
        if not thought and not hidden
    )
    return (
        "".join(texts),
        "".join(_thought(part) for part, thought in zip(value, thoughts, strict=True) if thought),
        not any(unreadable),
    )


def _has_text(choice: dict[str, Any]) -> bool:
    message = choice.get("message")
    return isinstance(message, dict) and any(
        message.get(key) for key in ("content", "reasoning", "reasoning_content", "tool_calls")
    )


def _word(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("type")  # SGLang's own finish reason
    return value if isinstance(value, str) and value and _is_unicode(value) else None


def _count(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
