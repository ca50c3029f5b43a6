"""The provider policy: which endpoints may answer, checked before sending and after. Pure."""

import math
import re
from dataclasses import dataclass
from typing import Any, get_args

from pipeline.core.sections import Section
from pipeline.formats.completion.values import mapping
from pipeline.stages.generate.config import HIGHEST_PRICE, PriceSection, ProviderSection, Quantization
from pipeline.stages.generate.limits.money import Price, to_pico, to_usd

FP4 = frozenset({"fp4", "nvfp4", "mxfp4"})
QUANTIZATIONS: tuple[str, ...] = get_args(Quantization)

OPTIONAL_PARAMETERS = frozenset({"logprobs", "top_logprobs", "return_token_ids"})
"""Optional parameters: an endpoint that does not support them may still answer."""


class Endpoint(Section):
    """One endpoint of the model, as the provider lists it. Prices are in dollars per million tokens."""

    provider: str
    """Name in answers."""
    tag: str
    """Name in requests."""
    quantization: str
    prompt: float
    completion: float
    request: float = 0.0
    """Dollars per request."""
    context: int | None = None
    max_completion: int | None = None
    parameters: list[str] | None = None
    """Null when the list does not state them."""

    @property
    def price(self) -> Price:
        """Highest price that the endpoint may charge."""
        return Price(to_pico(self.prompt / 1e6), to_pico(self.completion / 1e6), to_pico(self.request))


def normal(name: str) -> str:
    """Make display names and slugs comparable: `Moonshot AI` and `moonshotai` are the same."""
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def names(endpoint: Endpoint) -> set[str]:
    """Return every name that an entry of `allow` or `deny` may use for an endpoint."""
    return {normal(endpoint.provider), normal(endpoint.tag), normal(endpoint.tag.split("/")[0])}


def _dollars(value: Any) -> float:
    """Read a price as the API writes it (a decimal text); infinite when it cannot be read or trusted."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return math.inf
    return number if 0 <= number <= HIGHEST_PRICE / 1e6 else math.inf  # -1 means that the price varies


def parse_endpoints(document: Any) -> list[Endpoint]:
    """Read the API's list of endpoints, sorted by tag.

    Of a price that depends on the hour or the length, the highest counts.
    """
    listed = mapping(mapping(document).get("data")).get("endpoints")
    found = [_endpoint(entry) for entry in _objects(listed)]
    return sorted(found, key=lambda endpoint: (endpoint.tag, endpoint.provider, endpoint.quantization))


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the JSON objects in a list; empty when the value is not a list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _endpoint(entry: dict[str, Any]) -> Endpoint:
    pricing = mapping(entry.get("pricing"))
    tiers = [pricing, *_objects(pricing.get("overrides"))]
    dearest = {
        part: max(
            (_dollars(tier[key]) for tier in tiers for key in keys if key in tier),
            default=math.inf if part != "request" else 0.0,
        )
        for part, keys in {
            "prompt": ("prompt", "input_cache_write"),
            "completion": ("completion", "internal_reasoning"),
            "request": ("request",),
        }.items()
    }
    provider = str(entry.get("provider_name") or entry.get("tag") or "?")
    parameters = entry.get("supported_parameters")
    unpriced = not all(map(math.isfinite, dearest.values()))
    return Endpoint(
        provider=provider,
        tag=str(entry.get("tag") or provider),
        quantization=str(entry.get("quantization") or "unknown"),
        prompt=-1.0 if unpriced else round(dearest["prompt"] * 1e6, 6),
        completion=-1.0 if unpriced else round(dearest["completion"] * 1e6, 6),
        request=0.0 if unpriced else dearest["request"],
        context=entry.get("context_length") if isinstance(entry.get("context_length"), int) else None,
        max_completion=entry.get("max_completion_tokens")
        if isinstance(entry.get("max_completion_tokens"), int)
        else None,
        parameters=sorted(map(str, parameters)) if isinstance(parameters, list) else None,
    )


def admitted_quantizations(section: ProviderSection) -> list[str]:
    """Return the number formats that may answer; by default all but the 4-bit floats."""
    return (
        sorted(section.quantizations) if section.quantizations else [name for name in QUANTIZATIONS if name not in FP4]
    )


def objections(endpoint: Endpoint, section: ProviderSection, *, needs: frozenset[str], max_tokens: int) -> list[str]:
    """Return every reason why an endpoint may not answer; an empty list when it may."""
    own = names(endpoint)
    found = []
    if section.allow and not own & {normal(name) for name in section.allow}:
        found.append("not in provider.allow")
    if own & {normal(name) for name in section.deny}:
        found.append("in provider.deny")
    admitted = admitted_quantizations(section)
    named_fp4 = (
        not section.quantizations
        and endpoint.quantization not in FP4
        and "fp4" in normal(endpoint.tag + endpoint.provider)
    )
    if endpoint.quantization not in admitted or named_fp4:
        found.append(f"quantization {endpoint.quantization}{' (fp4 by its name)' if named_fp4 else ''} is not admitted")
    if endpoint.prompt < 0:
        found.append("its price is not stated, so no budget can hold")
    found += _too_dear(endpoint, section.max_price)
    if endpoint.parameters is not None and (lacking := sorted(needs - OPTIONAL_PARAMETERS - set(endpoint.parameters))):
        found.append(f"does not support {', '.join(lacking)}")
    if endpoint.max_completion is not None and endpoint.max_completion < max_tokens:
        found.append(f"answers at most {endpoint.max_completion} tokens, sampling.max_tokens is {max_tokens}")
    return found


def _too_dear(endpoint: Endpoint, most: PriceSection) -> list[str]:
    limits = {"prompt": (endpoint.prompt, most.prompt), "completion": (endpoint.completion, most.completion)}
    return [
        f"{part} price {price:g} is above provider.max_price.{part} {cap:g}"
        for part, (price, cap) in limits.items()
        if cap is not None and price > cap
    ]


@dataclass(frozen=True, slots=True)
class Admission:
    """The policy's decision on the endpoints, for one dataset's requests."""

    admitted: list[Endpoint]
    refused: list[tuple[Endpoint, list[str]]]
    price: Price
    """Highest price that a request can have; reservations use it."""
    verified: bool = True
    """False when the server has no list of endpoints, so the configured prices are used."""


def admit(endpoints: list[Endpoint], section: ProviderSection, *, needs: frozenset[str], max_tokens: int) -> Admission:
    """Sort the endpoints into admitted and refused."""
    judged = [(endpoint, objections(endpoint, section, needs=needs, max_tokens=max_tokens)) for endpoint in endpoints]
    admitted = [endpoint for endpoint, reasons in judged if not reasons]
    price = Price()
    for endpoint in admitted:
        price = price.most(endpoint.price)
    return Admission(admitted, [(endpoint, reasons) for endpoint, reasons in judged if reasons], price)


def provider_block(section: ProviderSection, admission: Admission) -> dict[str, Any]:
    """Return the `provider` object of a request, which states the policy in full.

    The price caps are the highest admitted prices, so a price that rises during a run is refused instead of paid.
    """
    block: dict[str, Any] = {
        "allow_fallbacks": True,
        # endpoints without a required parameter are left out already; an optional one must not leave out any
        "require_parameters": not (section.evidence.token_ids or section.evidence.logprobs),
        "data_collection": section.data_collection,
        "quantizations": admitted_quantizations(section),
        "max_price": {
            "prompt": to_usd(admission.price.prompt * 10**6),
            "completion": to_usd(admission.price.completion * 10**6),
        },
    }
    only = sorted({endpoint.tag for endpoint in admission.admitted}) or section.allow
    if only:
        block["only"] = only
    if section.deny:
        block["ignore"] = section.deny
    return block


def other_model(model: str | None, section: ProviderSection) -> str | None:
    """Return why an answer under that model name must not be trained on, or None."""
    if model is None or model in (section.model, *section.answers_as):
        return None
    return (
        f"model_revision_differs: {model!r} answered, {section.model!r} was asked; if it is the same model, name it in "
        "provider.answers_as"
    )


def other_provider(provider: str | None, section: ProviderSection, admitted: list[Endpoint]) -> str | None:
    """Return why an answer from that provider must not be trained on, or None.

    A server of kind openai is its own only provider.
    """
    if section.kind == "openai":
        return None
    if provider is None:
        return "provider_unknown: the answer does not say who gave it"
    own = normal(provider)
    if own in {normal(name) for name in section.deny}:
        return f"provider_not_allowed: {provider!r} is in provider.deny"
    known = (
        {name for endpoint in admitted for name in names(endpoint)} or {normal(name) for name in section.allow} or {own}
    )
    if own in known:
        return None
    listed = sorted({endpoint.provider for endpoint in admitted}) or section.allow
    return f"provider_not_allowed: {provider!r} is not among the admitted {listed}"
