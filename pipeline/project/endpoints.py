"""The provider's endpoints for this build, sorted by the policy. No request here costs money."""

from typing import Any

from pipeline.project.settings import BuildConfig
from pipeline.stages.generate.config import ProviderSection
from pipeline.stages.generate.provider.policy import Admission, admit, parse_endpoints
from pipeline.stages.generate.provider.server import endpoints_document
from pipeline.stages.generate.requests.request import RequestBuilder


def list_endpoints(section: ProviderSection) -> Any:
    """Return the provider's list of endpoints; None where it has no list.

    The stand-in's list is known without a server; any other is fetched.

    Raises:
        ProviderError: the server cannot be reached or refuses.

    """
    if section.kind == "openai":
        return None
    if section.kind == "embedded":
        from pipeline.standin.server.embedded_providers import PROVIDERS

        return {"data": {"id": section.model, "endpoints": [provider.endpoint() for provider in PROVIDERS]}}
    return endpoints_document(section)


def requirements(config: BuildConfig) -> tuple[frozenset[str], int]:
    """Return the parameters that any dataset sends, and the completion tokens of the longest answer that any allows."""
    parameters: frozenset[str] = frozenset()
    for dataset in config.datasets.values():
        parameters |= RequestBuilder(
            dataset.sampling, config.provider, send_tools=dataset.send_tools, identity=None
        ).parameters()
    return parameters, max(dataset.sampling.max_tokens for dataset in config.datasets.values())


def admitted_endpoints(config: BuildConfig) -> Admission | None:
    """Sort the provider's endpoints by the policy; return None where the server has no list.

    Raises:
        ProviderError: the server cannot be reached or refuses.

    """
    document = list_endpoints(config.provider)
    if document is None:
        return None
    parameters, longest = requirements(config)
    return admit(parse_endpoints(document), config.provider, needs=parameters, max_tokens=longest)
