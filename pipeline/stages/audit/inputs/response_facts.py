"""Usage, cost, model and errors of a response line, for the checks that compare them with the ids."""

from dataclasses import dataclass
from typing import Any

from pipeline.formats.completion.body import provider_of
from pipeline.formats.completion.choices import choice_list
from pipeline.formats.completion.envelope import open_envelope
from pipeline.formats.completion.error_report import error_of
from pipeline.formats.completion.usage import usage_of
from pipeline.formats.completion.values import mapping, word

_LARGEST = 1 << 53
"""Times and sums of costs stay below the largest whole number of a float, so that their sums are finite."""


@dataclass(frozen=True, slots=True)
class ResponseFacts:
    """Facts of one line of responses.jsonl; None for each that the line does not give, or gives in an unusable form."""

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
    """Reasoning included."""
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    """Cost of this answer by its own usage, else the prompt's cost over all attempts."""
    latency_ms: float | None = None
    """Only if the line has it: a build keeps times in its ledger."""


_NOTHING = ResponseFacts()


def read_facts(line: Any) -> ResponseFacts:
    """Read a line of responses.jsonl, a batch output line or a bare body; no field of it is trusted."""
    if not isinstance(line, dict):
        return _NOTHING
    enclosed = open_envelope(line)
    is_bare = "response" not in line and ("choices" in line or "meta_info" in line)
    body = line if is_bare else mapping(enclosed.body)
    choices = choice_list(body)
    choice = mapping(choices[0]) if isinstance(choices, list) and choices else {}
    usage = usage_of({**body, "usage": line["usage"]} if line.get("usage") else body)
    holders = ({"error": line.get("error")}, body, choice)
    errors = (report.line for holder in holders if (report := error_of(holder)) is not None)
    return ResponseFacts(
        model=_text(line.get("model")) or _text(body.get("model")),
        provider=_text(line.get("provider")) or provider_of(body),
        finish_reason=word(choice.get("finish_reason")),
        error=next(errors, enclosed.fault),
        policy=_text(line.get("policy")),
        refusal=_text(mapping(choice.get("message")).get("refusal")),
        prompt_tokens=usage.prompt,
        completion_tokens=usage.completion,
        reasoning_tokens=usage.reasoning,
        cached_tokens=usage.cached,
        cost_usd=usage.cost.usd if usage.cost.usd is not None else _number(line.get("cost_usd")),
        latency_ms=_number(line.get("latency_ms")),
    )


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < _LARGEST else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
