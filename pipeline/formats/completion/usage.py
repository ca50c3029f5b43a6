"""Tokens that the server counted, with reasoning counted into the completion whatever the server's habit."""

from typing import Any, NamedTuple

from pipeline.core.describe import describe
from pipeline.formats.completion.cost import NO_COST, Cost, read_cost
from pipeline.formats.completion.values import count, mapping

_Places = dict[str, tuple[str, ...]]
"""A field of a usage to the counts in it, if it is an object; else the field is the count itself."""
_REASONING: _Places = {
    "completion_tokens_details": ("reasoning_tokens",),
    "output_tokens_details": ("reasoning_tokens",),
    "reasoning_tokens": (),
}
_CACHED: _Places = {
    "prompt_tokens_details": ("cached_tokens",),
    "input_tokens_details": ("cached_tokens",),
    "cached_tokens": (),
    "cache_read_input_tokens": (),
    "prompt_cache_hit_tokens": (),
}
_BESIDE_INPUT = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""Anthropic counts these prompt tokens beside `input_tokens`, not inside."""


class Bill(NamedTuple):
    """The part of a usage that rebuilt ids are compared with."""

    tokens: int | None = None
    """Completion tokens, reasoning included; None if the server gives no usable count."""
    notes: tuple[str, ...] = ()


class Usage(NamedTuple):
    """The server's account of one request; None for each count that it does not give, or gives in an unusable form."""

    prompt: int | None = None
    """All prompt tokens, cached ones included."""
    completion: int | None = None
    """All tokens that the model emitted, reasoning included."""
    reasoning: int | None = None
    """Reasoning tokens as reported: they may be inside or beside the server's own count of the completion."""
    cached: int | None = None
    """Prompt tokens that came from a cache."""
    cost: Cost = NO_COST
    notes: tuple[str, ...] = ()
    """Codes of how the counts were read, and of what could not be used."""

    @property
    def bill(self) -> Bill:
        """Completion tokens and notes."""
        return Bill(self.completion, self.notes)


NO_USAGE = Usage()


def usage_of(body: dict[str, Any]) -> Usage:
    """Read the usage of a body: `usage`, else `x_groq.usage`, SGLang's `meta_info`, or the `usage` of the choices."""
    usage = read_usage(body.get("usage"))
    if usage.completion is not None:
        return usage
    for nested in (mapping(body.get("x_groq")).get("usage"), body.get("meta_info")):
        if isinstance(nested, dict):
            usage = _filled(usage, read_usage(nested))
            if usage.completion is not None:
                return usage
    return _filled(usage, _usage_of_choices(body.get("choices")))


def read_usage(usage: Any) -> Usage:
    """Read one usage object of OpenAI, OpenRouter, vLLM, SGLang or Anthropic."""
    if not isinstance(usage, dict):
        return NO_USAGE if usage is None else Usage(notes=(f"count_unusable: usage is {describe(usage)}",))
    prompt, reasoning = _prompt_tokens(usage), _reported(usage, _REASONING)
    cached = _reported(usage, _CACHED)
    total = count(usage.get("total_tokens"))
    emitted = total - prompt if total is not None and prompt is not None else None
    completion, notes = _completion_tokens(usage, reasoning, emitted)
    return Usage(prompt, completion, reasoning, cached, read_cost(usage), notes)


def _completion_tokens(
    usage: dict[str, Any], reasoning: int | None, emitted: int | None
) -> tuple[int | None, tuple[str, ...]]:
    """Return the emitted tokens and notes; `emitted` is total - prompt.

    Some servers report reasoning beside the completion. Two things show it: total - prompt is more than the completion,
    or the reasoning is more than the completion that should hold it and the total does not contradict. Where figures
    contradict each other, the largest counts: a budget must not pass its cap on the smaller one.
    """
    key = (
        "output_tokens" if usage.get("completion_tokens") is None and "output_tokens" in usage else "completion_tokens"
    )
    stated = count(usage.get(key))
    if stated is None:
        odd = () if usage.get(key) is None else (f"count_unusable: {key} is {describe(usage[key])}",)
        return (
            (emitted, (*odd, "billed_as_total_minus_prompt")) if emitted is not None and emitted >= 0 else (None, odd)
        )
    if emitted == stated or (emitted is None and not reasoning):
        return stated, ()
    apart = stated + reasoning if reasoning is not None and reasoning > stated else stated
    tokens = max(apart, emitted or 0)
    if tokens == stated:
        return stated, ()
    return tokens, ("usage_disjoint" if reasoning and tokens == stated + reasoning else "billed_as_total_minus_prompt",)


def _prompt_tokens(usage: dict[str, Any]) -> int | None:
    stated = usage.get("prompt_tokens")
    if stated is not None:
        return count(stated)
    tokens = count(usage.get("input_tokens"))
    return None if tokens is None else tokens + sum(count(usage.get(beside)) or 0 for beside in _BESIDE_INPUT)


def _reported(usage: dict[str, Any], places: _Places) -> int | None:
    """Return the first usable count at one of the places."""
    if usage.keys().isdisjoint(places):
        return None
    for field, names in places.items():
        value = usage.get(field)
        counts = map(count, map(value.get, names) if isinstance(value, dict) else (value,))
        if (tokens := next((tokens for tokens in counts if tokens is not None), None)) is not None:
            return tokens
    return None


def _usage_of_choices(choices: Any) -> Usage:
    """Sum the usages of the choices; the first one's prompt, since all choices share it. Nothing if one has none."""
    usages = (
        [read_usage(choice.get("usage")) for choice in choices if isinstance(choice, dict)]
        if isinstance(choices, list)
        else []
    )
    if len(usages) == 1:
        return usages[0]
    completions = [usage.completion for usage in usages if usage.completion is not None]
    costs = [usage.cost.usd for usage in usages if usage.cost.usd is not None]
    if not usages or len(completions) < len(usages):
        return NO_USAGE
    cost = Cost(sum(costs)) if len(costs) == len(usages) else NO_COST
    return Usage(
        usages[0].prompt,
        sum(completions),
        cost=cost,
        notes=tuple(dict.fromkeys(note for usage in usages for note in usage.notes)),
    )


def _filled(usage: Usage, other: Usage) -> Usage:
    """Return a usage with what another one knows besides."""
    return Usage(
        usage.prompt if usage.prompt is not None else other.prompt,
        usage.completion if usage.completion is not None else other.completion,
        usage.reasoning if usage.reasoning is not None else other.reasoning,
        usage.cached if usage.cached is not None else other.cached,
        usage.cost if usage.cost != NO_COST else other.cost,
        (*usage.notes, *other.notes),
    )
