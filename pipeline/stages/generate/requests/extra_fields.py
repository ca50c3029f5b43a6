"""What `sampling.extra` may not say: fields that the engine sets, and fields that cost what no budget foresees or bring another model in. Pure."""

from typing import Any

import orjson

_OWN = "has a key of its own in conf/, and the budget and the policy rely on it"
_PAID = "can cost more than tokens, and no budget foresees that"
_ROUTE = "decides who answers, which is the provider section's business"
_COUNT = "asks for several answers, and a prompt gets one"
_PROMPT = "changes what the model is asked, which is the prompt's business"
_FORM = "changes the form of the answer, which the engine sets"

REFUSED = {
    **dict.fromkeys(
        (
            "model",
            "temperature",
            "top_p",
            "max_tokens",
            "max_completion_tokens",
            "seed",
            "provider",
            "logprobs",
            "return_token_ids",
        ),
        _OWN,
    ),
    **dict.fromkeys(
        ("plugins", "web_search_options", "prediction", "modalities", "audio", "image_config", "service_tier"), _PAID
    ),
    **dict.fromkeys(("models", "route", "preset", "extra_body", "extra_headers", "extra_query", "session_id"), _ROUTE),
    **dict.fromkeys(("n", "best_of", "num_return_sequences"), _COUNT),
    **dict.fromkeys(
        ("messages", "prompt", "tools", "functions", "function_call", "transforms", "documents", "input"), _PROMPT
    ),
    **dict.fromkeys(("stream", "stream_options", "echo", "debug", "background"), _FORM),
}
"""Field of the request body to why it is refused."""

_MARKS = {"search": _PAID, "plugin": _PAID, "online": _PAID}
"""Parts of a name that speak of paid extras, whoever the provider is."""


def objections(extra: dict[str, Any]) -> list[str]:
    """Every reason why the fields may not be sent."""
    found = [f"{name} {why}" for name in extra if (why := _why_not(name)) is not None]
    try:
        orjson.dumps(extra)
    except TypeError as error:  # a number beyond 64 bits, a date
        found.append(f"the fields are not JSON: {error}")
    return found


def _why_not(name: str) -> str | None:
    plain = name.strip().casefold()
    return REFUSED.get(plain) or next((why for mark, why in _MARKS.items() if mark in plain), None)


def model_objection(model: str) -> str | None:
    """Why a router's model name may not be asked: suffixes and names that buy extras or let the router choose."""
    base, _, variant = model.partition(":")
    if variant.casefold() == "online":
        return f"{model!r} buys a web search with each request, which no budget foresees; ask for {base!r}"
    if base.casefold() == "openrouter/auto" or base.startswith("@preset/") or "@preset/" in model:
        return f"{model!r} lets the router choose the model; name one"
    return None
