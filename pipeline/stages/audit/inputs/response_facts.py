"""What a response line says besides text: usage, cost, model, errors. Every field is untrusted and may be missing or of any type."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """The facts of one line of responses.jsonl that checks compare with the ids."""

    model: str | None = None
    provider: str | None = None
    finish_reason: str | None = None
    error: str | None = None
    """Why there is no usable answer."""
    policy: str | None = None
    """Why the answer lies outside the provider policy."""
    refusal: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    """Cost of this answer by its own usage, else what the prompt cost over all attempts."""
    latency_ms: float | None = None
    """Only where the line has it: a build keeps times in its ledger."""


_NOTHING = Answer()


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    """A count of tokens; none is larger than what tokens.parquet can hold."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None


def _number(value: Any) -> float | None:
    """A cost or a time; beyond the largest whole number of a float there is none, and their sums stay finite."""
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 53
        else None
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _describe(error: Any) -> str | None:
    """One line for an error in any of the shapes that servers use."""
    if not error:
        return None
    found = _mapping(error)
    parts = [str(found[key]) for key in ("kind", "code", "type", "message") if found.get(key)]
    return ": ".join(parts) if parts else str(error)


def read_answer(line: Any) -> Answer:
    """Take what is there; nothing is an answer with nothing known."""
    if line is None:
        return _NOTHING
    line = _mapping(line)
    body = _mapping(line.get("response"))
    choices = body.get("choices")
    choice = _mapping(choices[0]) if isinstance(choices, list) and choices else {}
    usage = _mapping(line.get("usage") or body.get("usage"))
    cost = _number(usage.get("cost"))
    return Answer(
        model=_text(line.get("model")) or _text(body.get("model")),
        provider=_text(line.get("provider")) or _text(body.get("provider")),
        finish_reason=_text(choice.get("finish_reason")),
        error=_describe(line.get("error") or body.get("error") or choice.get("error")),
        policy=_text(line.get("policy")),
        refusal=_text(_mapping(choice.get("message")).get("refusal")),
        prompt_tokens=_whole(usage.get("prompt_tokens")),
        completion_tokens=_whole(usage.get("completion_tokens")),
        reasoning_tokens=_whole(_mapping(usage.get("completion_tokens_details")).get("reasoning_tokens")),
        cached_tokens=_whole(_mapping(usage.get("prompt_tokens_details")).get("cached_tokens")),
        cost_usd=cost if cost is not None else _number(line.get("cost_usd")),
        latency_ms=_number(line.get("latency_ms")),
    )
