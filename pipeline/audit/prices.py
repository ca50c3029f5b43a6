"""What the providers' endpoints charged when the answers were made, as `generate` wrote it down."""

from pathlib import Path
from typing import Any

from pipeline.artifacts import read_json
from pipeline.audit.config import TokenPrice
from pipeline.audit.context import TokenPrices


def read_prices(path: Path) -> TokenPrices:
    """Prices by provider, in dollars per million tokens, from `endpoints` of a generate.json; an endpoint without prices is left out.

    Raises:
        ArtifactError: the file is missing or not JSON.

    """
    document = read_json(path)
    endpoints = document.get("endpoints") if isinstance(document, dict) else None
    prices: TokenPrices = {}
    for endpoint in endpoints if isinstance(endpoints, list) else []:
        if isinstance(endpoint, dict) and isinstance(endpoint.get("provider"), str) and (price := _price(endpoint)) is not None:
            prices.setdefault(endpoint["provider"], []).append(price)
    return prices


def _price(endpoint: dict[str, Any]) -> TokenPrice | None:
    """Price of an endpoint that charges by the token alone."""
    prompt, completion = endpoint.get("prompt"), endpoint.get("completion")
    known = all(isinstance(value, int | float) and value >= 0 for value in (prompt, completion))
    return TokenPrice(prompt=prompt, completion=completion) if known and not endpoint.get("request") else None
