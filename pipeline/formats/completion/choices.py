"""The choices of a body as sent: texts, calls, ids and how each ended; what the model emitted is read elsewhere."""

from typing import Any, Literal, NamedTuple

from pipeline.core.describe import describe
from pipeline.formats.completion.message_texts import has_text, read_content, read_reasoning
from pipeline.formats.completion.sampled_ids import completion_ids
from pipeline.formats.completion.structured_calls import Call, read_calls
from pipeline.formats.completion.values import UnusableFieldError, is_unicode, word

Finish = Literal["stop", "length", "unknown"]
"""`stop`: the model ended its turn; `length`: it was cut; `unknown`: the server does not say."""

_STOPS = frozenset({"stop", "tool_calls", "function_call", "end_turn", "eos", "eos_token", "stop_sequence", "tool_use"})
_LENGTHS = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})


_Texts = tuple[str, str, tuple[Call, ...], str | None]
"""Reasoning, content, calls and a contradicting second reasoning."""
_NO_TEXTS: _Texts = ("", "", (), None)


class Answer(NamedTuple):
    """One choice of a completion. A named tuple: a frozen dataclass takes four times as long to make."""

    position: int
    """Of the choice in the body."""
    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()
    finish: Finish = "unknown"
    finish_reason: str | None = None
    """The server's word."""
    other_reasoning: str | None = None
    """A second text for the reasoning, where two fields of the body contradict each other."""
    rejects: tuple[str, ...] = ()
    """Codes of what makes the texts unusable: an error, a summary in place of the reasoning, ..."""
    given: tuple[tuple[str, Any], ...] = ()
    """Token ids that came with the answer, unchecked: (field, ids)."""
    logprobs: Any = None
    """The choice's `logprobs`, for `logged_tokens`."""
    notes: tuple[str, ...] = ()
    """Details of `rejects`."""
    has_text: bool = True
    """False for a bare list of ids, which has no text to agree with."""
    native_finish_reason: str | None = None
    """The upstream provider's word."""
    stopped_by: int | str | None = None
    """The stop string, or the id of the stop token, that ended the answer; None for the usual end token of vLLM."""
    names_stop: bool = False
    """True when the choice has a field for `stopped_by`, null or not."""

    @property
    def empty(self) -> bool:
        """Return whether the server sent no text at all."""
        return not (self.reasoning or self.content or self.calls)


def choice_list(body: dict[str, Any]) -> Any:
    """Return `choices`, unchecked; a body of SGLang's own `/generate` has one choice."""
    choices, meta = body.get("choices"), body.get("meta_info")
    if choices is not None or not isinstance(body.get("text"), str) or not isinstance(meta, dict):
        return choices
    logprobs = meta.get("output_token_logprobs")
    entries = logprobs if isinstance(logprobs, list) else []
    sampled = [entry[1] for entry in entries if isinstance(entry, list) and len(entry) > 1]
    return [
        {
            "text": body["text"],
            "finish_reason": meta.get("finish_reason"),
            "matched_stop": meta.get("matched_stop"),
            "logprobs": {"token_ids": sampled} if sampled else None,
        }
    ]


def read_choice(choice: Any, position: int, body: dict[str, Any]) -> Answer:
    """Read one choice; one that cannot be read has `rejects`."""
    if not isinstance(choice, dict):
        return Answer(
            position, rejects=("not_a_completion",), notes=(f"not_a_completion: the choice is {describe(choice)}",)
        )
    reason, native = word(choice.get("finish_reason")), word(choice.get("native_finish_reason"))
    finish, stopped_by = _finish(reason, native), _stopped_by(choice)
    given: tuple[tuple[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    rejects: tuple[str, ...]
    texts, logprobs = _NO_TEXTS, None
    if choice.get("error") or reason == "error":
        rejects = ("provider_error", "partial_text") if has_text(choice) else ("provider_error",)
    else:
        given, logprobs = tuple(completion_ids(choice, position, body)), choice.get("logprobs")
        try:
            texts, rejects = _read_texts(choice, reason)
        except UnusableFieldError as error:
            code, *details = error.args
            rejects, notes = (code,), tuple(f"{code}: {detail}" for detail in details)
    reasoning, content, calls, other = texts
    return Answer(
        position,
        reasoning,
        content,
        calls,
        finish,
        reason,
        other,
        rejects,
        given,
        logprobs,
        notes,
        True,
        native,
        stopped_by,
        "stop_reason" in choice or "matched_stop" in choice,
    )


def _read_texts(choice: dict[str, Any], reason: str | None) -> tuple[_Texts, tuple[str, ...]]:
    """Return the texts of a choice, and codes of what makes them unusable.

    Raises:
        UnusableFieldError: a field cannot be read at all.

    """
    message = choice.get("message")
    if message is None and isinstance(choice.get("text"), str):
        message = {"content": choice["text"]}
    if not isinstance(message, dict):
        raise UnusableFieldError(
            "not_a_completion",
            f"`message` is {describe(message)}" if "message" in choice else f"the choice is {describe(choice)}",
        )
    content, thoughts, readable = read_content(message.get("content"))
    reasoning, other, raw = read_reasoning(message, thoughts)
    rejects: tuple[str, ...] = () if raw and readable else ("reasoning_not_raw",)
    if not content and isinstance(message.get("refusal"), str) and message["refusal"]:
        rejects += ("refusal",)
    if reason == "content_filter":
        rejects += ("content_filter",)
    calls = tuple(read_calls(message))
    texts = [reasoning, content, other or ""]
    for call in calls:
        texts += (call.id, call.name, call.arguments)
    if not all(map(is_unicode, texts)):
        raise UnusableFieldError("text_not_utf8")
    return (reasoning, content, calls, other), rejects


def _finish(reason: str | None, native: str | None) -> Finish:
    words = {text.lower() for text in (reason, native) if text}
    if words & _LENGTHS:
        return "length"
    return "stop" if words & _STOPS else "unknown"


def _stopped_by(choice: dict[str, Any]) -> int | str | None:
    """Return vLLM's `stop_reason`, or SGLang's `matched_stop`, which its own route has as `finish_reason.matched`."""
    value = choice.get("stop_reason")
    if value is None:
        value = choice.get("matched_stop")
    if value is None and isinstance(reason := choice.get("finish_reason"), dict):
        value = reason.get("matched")
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None
