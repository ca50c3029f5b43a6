"""What the providers' endpoints charged, are called, and compute in, as `generate` wrote it down when the answers were made."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.files.json_file import read_json
from pipeline.stages.audit.config import TokenPrice

TokenPrices = dict[str, list[TokenPrice]]
"""By provider's name; one with several endpoints has several prices."""
ProviderTags = dict[str, list[str]]
"""By provider's name: how requests and the policy call its endpoints (`novita/fp8` of NovitaAI)."""


@dataclass(frozen=True)
class Endpoints:
    """What is known of the providers' endpoints, by provider's name."""

    prices: TokenPrices = field(default_factory=dict)
    """In dollars per million tokens; endpoints without prices are left out."""
    tags: ProviderTags = field(default_factory=dict)
    """Of endpoints admitted and refused: an answer has only the display name, the policy may use either."""
    quantizations: dict[str, list[str]] = field(default_factory=dict)
    """Number formats of the admitted endpoints; which of them gave an answer, no answer says."""


def read_endpoints(path: Path) -> Endpoints:
    """Endpoints that a generate.json lists.

    Raises:
        ArtifactError: the file is missing or not JSON.

    """
    document = read_json(path)
    admitted, refused = _listed(document, "endpoints"), _listed(document, "refused")
    found = Endpoints()
    for endpoint in admitted:
        name, quantization = endpoint["provider"], endpoint.get("quantization")
        if (price := _price(endpoint)) is not None:
            found.prices.setdefault(name, []).append(price)
        if isinstance(quantization, str) and quantization not in found.quantizations.setdefault(name, []):
            found.quantizations[name].append(quantization)
    for endpoint in (*admitted, *refused):
        if isinstance(endpoint.get("tag"), str):
            found.tags.setdefault(endpoint["provider"], []).append(endpoint["tag"])
    return found


def _listed(document: Any, part: str) -> list[dict[str, Any]]:
    """Entries of a list of generate.json that name a provider."""
    listed = document.get(part) if isinstance(document, dict) else None
    return (
        [entry for entry in listed if isinstance(entry, dict) and isinstance(entry.get("provider"), str)]
        if isinstance(listed, list)
        else []
    )


def _price(endpoint: dict[str, Any]) -> TokenPrice | None:
    """Price of an endpoint that charges by the token alone."""
    prompt, completion = endpoint.get("prompt"), endpoint.get("completion")
    known = all(isinstance(value, int | float) and value >= 0 for value in (prompt, completion))
    return TokenPrice(prompt=prompt, completion=completion) if known and not endpoint.get("request") else None
