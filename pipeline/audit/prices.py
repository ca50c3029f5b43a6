"""What the providers' endpoints charged, and are called, as `generate` wrote it down when the answers were made."""

from pathlib import Path
from typing import Any

from pipeline.artifacts import read_json
from pipeline.audit.config import TokenPrice
from pipeline.audit.context import ProviderTags, TokenPrices


def read_prices(path: Path) -> TokenPrices:
    """Prices by provider, in dollars per million tokens, from `endpoints` of a generate.json; an endpoint without prices is left out.

    Raises:
        ArtifactError: the file is missing or not JSON.

    """
    prices: TokenPrices = {}
    for endpoint in _endpoints(path, "endpoints"):
        if (price := _price(endpoint)) is not None:
            prices.setdefault(endpoint["provider"], []).append(price)
    return prices


def read_tags(path: Path) -> ProviderTags:
    """Tags of each provider's endpoints, admitted and refused: an answer has only the display name, the policy may use either.

    Raises:
        ArtifactError: the file is missing or not JSON.

    """
    tags: ProviderTags = {}
    for endpoint in (*_endpoints(path, "endpoints"), *_endpoints(path, "refused")):
        if isinstance(endpoint.get("tag"), str):
            tags.setdefault(endpoint["provider"], []).append(endpoint["tag"])
    return tags


def _endpoints(path: Path, part: str) -> list[dict[str, Any]]:
    """Entries of a list of generate.json that name a provider."""
    document = read_json(path)
    listed = document.get(part) if isinstance(document, dict) else None
    return [entry for entry in listed if isinstance(entry, dict) and isinstance(entry.get("provider"), str)] if isinstance(listed, list) else []


def _price(endpoint: dict[str, Any]) -> TokenPrice | None:
    """Price of an endpoint that charges by the token alone."""
    prompt, completion = endpoint.get("prompt"), endpoint.get("completion")
    known = all(isinstance(value, int | float) and value >= 0 for value in (prompt, completion))
    return TokenPrice(prompt=prompt, completion=completion) if known and not endpoint.get("request") else None
