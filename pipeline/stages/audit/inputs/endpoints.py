"""The providers' endpoints, with prices, tags and number formats, as `generate` recorded them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.files.json_file import read_json
from pipeline.stages.audit.config import TokenPrice

TokenPrices = dict[str, list[TokenPrice]]
"""Prices by provider; a provider with several endpoints has several."""
ProviderTags = dict[str, list[str]]
"""Tags by provider: the names of its endpoints in requests and in the policy (`novita/fp8` of NovitaAI)."""


@dataclass(frozen=True)
class Endpoints:
    """Facts about the providers' endpoints, by provider; empty where nothing is known."""

    prices: TokenPrices = field(default_factory=dict)
    """Prices in dollars per million tokens; endpoints without prices are left out."""
    tags: ProviderTags = field(default_factory=dict)
    """Tags of admitted and of refused endpoints: an answer has only the display name, but the policy may use either."""
    quantizations: dict[str, list[str]] = field(default_factory=dict)
    """Number formats of the admitted endpoints; an answer does not say which endpoint gave it."""


NO_ENDPOINTS = Endpoints()
"""Nothing is known of any endpoint."""


def read_endpoints(path: Path) -> Endpoints:
    """Read the endpoints that a generate.json lists.

    Raises:
        ArtifactError: the file is missing or not JSON.

    """
    document = read_json(path)
    admitted, refused = _listed(document, "endpoints"), _listed(document, "refused")
    endpoints = Endpoints()
    for endpoint in admitted:
        name, quantization = endpoint["provider"], endpoint.get("quantization")
        if (price := _price(endpoint)) is not None:
            endpoints.prices.setdefault(name, []).append(price)
        if isinstance(quantization, str) and quantization not in endpoints.quantizations.setdefault(name, []):
            endpoints.quantizations[name].append(quantization)
    for endpoint in (*admitted, *refused):
        if isinstance(endpoint.get("tag"), str):
            endpoints.tags.setdefault(endpoint["provider"], []).append(endpoint["tag"])
    return endpoints


def _listed(document: Any, part: str) -> list[dict[str, Any]]:
    """Return the entries of a list in generate.json that name a provider."""
    listed = document.get(part) if isinstance(document, dict) else None
    return (
        [entry for entry in listed if isinstance(entry, dict) and isinstance(entry.get("provider"), str)]
        if isinstance(listed, list)
        else []
    )


def _price(endpoint: dict[str, Any]) -> TokenPrice | None:
    """Return the price of an endpoint, or None where it is unknown or the endpoint also charges for each request."""
    prompt, completion = endpoint.get("prompt"), endpoint.get("completion")
    known = all(isinstance(value, int | float) and value >= 0 for value in (prompt, completion))
    return TokenPrice(prompt=prompt, completion=completion) if known and not endpoint.get("request") else None
