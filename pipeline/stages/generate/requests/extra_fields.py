"""Fields that `sampling.extra` may not set. Pure.

The engine sets some of them; others cost money that the budget does not count, or let another model answer.
"""

from typing import Any

import orjson

_OWN = "has a key of its own in conf/, on which the budget and the policy rely"
_PAID = "can cost more than tokens, which the budget does not count"
_ROUTE = "decides who answers, which the provider section does"
_COUNT = "asks for several answers, and a prompt gets one"
_PROMPT = "changes what the model is asked, which the prompt does"
_FORM = "changes the form of the answer, which the engine sets"

_END = "ends an answer where its bill cannot tell this from the model's own end, so the ids of its end are not known"

REFUSED = {
    **dict.fromkeys(
        (
            "model",
            "temperature",
            "top_p",
            "max_tokens",
            "max_completion_tokens",
            "max_new_tokens",
            "max_output_tokens",
            "max_length",
            "n_predict",
            "num_predict",
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
    **dict.fromkeys(
        ("stop", "stop_token_ids", "ignore_eos", "eos_token", "eos_token_id", "end_id", "bad_words", "min_tokens"), _END
    ),
    **dict.fromkeys(("stream", "stream_options", "echo", "debug", "background"), _FORM),
}
"""Field of the request body to the reason why it is refused."""

_PARTS = {"search": _PAID, "plugin": _PAID, "online": _PAID, "stop": _END}
"""Parts of a field's name that suggest paid extras, or an end before the model's own, at any provider."""

_CONTAINERS = frozenset({"sampling_params", "parameters", "options", "generation_config", "vllm_xargs", "extra_args"})
"""Fields under which servers take the same fields once more."""


def objections(extra: dict[str, Any]) -> list[str]:
    """Return every reason why the fields may not be sent."""
    fields = [(name, name) for name in extra] + [
        (f"{container}.{name}", name)
        for container, inner in extra.items()
        if container.strip().casefold() in _CONTAINERS and isinstance(inner, dict)
        for name in inner
    ]
    reasons = [f"{place} {why}" for place, name in fields if (why := _why_not(str(name))) is not None]
    try:
        orjson.dumps(extra)
    except TypeError as error:  # a number beyond 64 bits, a date
        reasons.append(f"the fields are not JSON: {error}")
    return reasons


def _why_not(name: str) -> str | None:
    plain = name.strip().casefold()
    return REFUSED.get(plain) or next((why for part, why in _PARTS.items() if part in plain), None)


def model_objection(model: str) -> str | None:
    """Return why a router must not be asked for that model name, or None: it buys extras, or lets the router choose."""
    base, _, variant = model.partition(":")
    if variant.casefold() == "online":
        return f"{model!r} buys a web search with each request, which the budget does not count; ask for {base!r}"
    if base.casefold() == "openrouter/auto" or base.startswith("@preset/") or "@preset/" in model:
        return f"{model!r} lets the router choose the model; name one"
    return None
