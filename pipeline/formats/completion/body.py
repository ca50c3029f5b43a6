"""A completion's body to a typed reply: every shape met in practice, and no exception for any other JSON value."""

from typing import Any, NamedTuple

from pipeline.core.describe import describe
from pipeline.formats.completion.choices import Answer, choice_list, read_choice
from pipeline.formats.completion.error_report import error_of
from pipeline.formats.completion.message_texts import has_text
from pipeline.formats.completion.usage import NO_USAGE, Bill, Usage, usage_of
from pipeline.formats.completion.values import in_order, mapping, word


class Reply(NamedTuple):
    """A whole body."""

    provider: str | None = None
    usage: Usage = NO_USAGE
    answers: tuple[Answer, ...] = ()
    rejects: tuple[str, ...] = ()
    """Codes of what makes the body as a whole unusable; then there are no answers."""
    notes: tuple[str, ...] = ()
    """Details of `rejects`."""

    @property
    def bill(self) -> Bill:
        """Completion tokens that the server counted, for all answers together."""
        return self.usage.bill


def parse_body(body: Any) -> Reply:
    """Read a body of OpenAI, OpenRouter, vLLM, SGLang, Fireworks and servers like them."""
    if not isinstance(body, dict):
        return _no_completion(f"the body is {describe(body)}")
    provider, usage, choices = provider_of(body), usage_of(body), choice_list(body)
    if error_of(body) is not None:
        partial = isinstance(choices, list) and any(isinstance(choice, dict) and has_text(choice) for choice in choices)
        return Reply(provider, usage, rejects=("provider_error", *(("partial_text",) if partial else ())))
    if not isinstance(choices, list) or not choices:
        what = f"`choices` is {describe(choices)}" if "choices" in body else f"the body is {describe(body)}"
        return _no_completion(what, provider, usage)
    return Reply(provider, usage, tuple(read_choice(choice, n, body) for n, choice in enumerate(in_order(choices))))


def provider_of(body: dict[str, Any]) -> str | None:
    """Return who answered: `provider`, else the endpoint that OpenRouter's metadata marks as selected."""
    if (named := word(body.get("provider"))) is not None or "openrouter_metadata" not in body:
        return named
    available = mapping(mapping(body["openrouter_metadata"]).get("endpoints")).get("available")
    selected = (
        (entry for entry in available if isinstance(entry, dict) and entry.get("selected") is True)
        if isinstance(available, list)
        else ()
    )
    return next((name for entry in selected if (name := word(entry.get("provider"))) is not None), None)


def _no_completion(what: str, provider: str | None = None, usage: Usage = NO_USAGE) -> Reply:
    return Reply(provider, usage, rejects=("not_a_completion",), notes=(f"not_a_completion: {what}",))
