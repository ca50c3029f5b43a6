"""The provider's endpoints for this build: fetched, and sorted by the policy. No request here costs money."""

from typing import Any

from pipeline.project.settings import BuildConfig
from pipeline.stages.generate.config import ProviderSection
from pipeline.stages.generate.provider.policy import Admission, admit, parse_endpoints
from pipeline.stages.generate.provider.server import endpoints_document
from pipeline.stages.generate.requests.request import Asker


def listed(section: ProviderSection) -> Any:
    """Fetch the provider's endpoint list; the stand-in's is known without a server; None where there is none.

    Raises:
        ProviderError: the server cannot be reached or refuses.

    """
    if section.kind == "openai":
        return None
    if section.kind == "embedded":
        from pipeline.standin.server.embedded_providers import PROVIDERS

        return {"data": {"id": section.model, "endpoints": [provider.endpoint() for provider in PROVIDERS]}}
    return endpoints_document(section)


def needs(config: BuildConfig) -> tuple[frozenset[str], int]:
    """Parameters that any dataset sends, and the longest answer that any asks for."""
    parameters: frozenset[str] = frozenset()
    for dataset in config.datasets.values():
        parameters |= Asker(
            dataset.sampling, config.provider, send_tools=dataset.send_tools, identity=None
        ).parameters()
    return parameters, max(dataset.sampling.max_tokens for dataset in config.datasets.values())


def judged(config: BuildConfig) -> Admission | None:
    """Sort the provider's endpoints by the policy; None where the server has no list."""
    document = listed(config.provider)
    parameters, longest = needs(config)
    return (
        None
        if document is None
        else admit(parse_endpoints(document), config.provider, needs=parameters, max_tokens=longest)
    )
