"""Routing of a request to a provider: the rules admit some providers, and the request's digest picks one of them."""

from collections.abc import Callable
from fractions import Fraction

from pipeline.standin.server.chat_request import ChatRequest, RequestError
from pipeline.standin.server.embedded_providers import MODEL, PROVIDERS, EmbeddedProvider

_MILLION = 1_000_000


def _named(slugs: list[str] | None, provider: EmbeddedProvider) -> bool:
    return any(provider.admits(slug) for slug in slugs or [])


def _too_dear(price: str, most: float | None) -> bool:
    return most is not None and Fraction(price) * _MILLION > Fraction(str(most))


def _rules(request: ChatRequest) -> dict[str, Callable[[EmbeddedProvider], bool]]:
    """Return each rule by its name, as a test that is true for an excluded provider."""
    routing, price = request.provider, request.provider.max_price
    return {
        "only": lambda provider: routing.only is not None and not _named(routing.only, provider),
        "ignore": lambda provider: _named(routing.ignore, provider),
        "order": lambda provider: (
            routing.allow_fallbacks is False and bool(routing.order) and not _named(routing.order, provider)
        ),
        "quantization": lambda provider: (
            routing.quantizations is not None and provider.quantization not in routing.quantizations
        ),
        "max_price": lambda provider: (
            price is not None
            and (
                _too_dear(provider.prompt_price, price.prompt) or _too_dear(provider.completion_price, price.completion)
            )
        ),
        "require_parameters": lambda provider: (
            bool(routing.require_parameters) and not request.parameters() <= provider.parameters
        ),
    }


def admitted(request: ChatRequest) -> list[EmbeddedProvider]:
    """Return the providers that the request's rules admit, in a fixed order.

    Raises:
        RequestError: 404; no provider is left, and `availability` lists the rules that excluded each.

    """
    rules = _rules(request)
    why = {provider.tag: [name for name, excludes in rules.items() if excludes(provider)] for provider in PROVIDERS}
    left = [provider for provider in PROVIDERS if not why[provider.tag]]
    if not left:
        causes = sorted({name for names in why.values() for name in names})
        availability = {
            "code": "no_endpoints",
            "retryable": False,
            "requested_models": [MODEL],
            "affected_providers": sorted(why),
            "excluded_by": causes,
            "constraint": {
                "field": f"provider.{causes[0]}",
                "detail": "; ".join(f"{tag}: {', '.join(names)}" for tag, names in sorted(why.items())),
            },
        }
        raise RequestError(
            404,
            f"No endpoints found for {MODEL} that fit the provider rules ({', '.join(causes)})",
            "constraint_filtered",
            availability,
        )
    return left


def choose(request: ChatRequest, digest: bytes, left: list[EmbeddedProvider]) -> EmbeddedProvider:
    """Pick one of ``left``: the first that `order` names, else one by weight, decided by the request's digest."""
    for slug in request.provider.order or []:
        for provider in left:
            if provider.admits(slug):
                return provider
    point = int.from_bytes(digest[:8], "little") % sum(provider.weight for provider in left)
    for provider in left:
        point -= provider.weight
        if point < 0:
            return provider
    raise AssertionError("the weights add up to more than the point")
