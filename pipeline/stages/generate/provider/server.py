"""The server that answers: its address, its headers, and its list of endpoints."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson

from pipeline.core.errors import ConfigError, ProviderError
from pipeline.stages.generate.config import ProviderSection
from pipeline.stages.generate.limits.money import price_of
from pipeline.stages.generate.provider.policy import Admission, admit, parse_endpoints

if TYPE_CHECKING:
    from pipeline.core.http import Timeouts  # the network client is slow to import, and a rerun does not need it


def api_key(section: ProviderSection) -> str | None:
    """Read the key from the environment variable that the config names; it goes into one header and nowhere else.

    Raises:
        ConfigError: the variable is not set, or its value cannot be a header.

    """
    if section.api_key_env is None:
        return None
    key = os.environ.get(section.api_key_env, "")
    if not key:
        raise ConfigError(
            f"the environment variable {section.api_key_env} (provider.api_key_env) is not set: export the provider's "
            "key in it, and run again"
        )
    if not key.isascii() or not key.isprintable() or key.strip() != key:
        raise ConfigError(
            f"the environment variable {section.api_key_env} holds a key with white space or other characters that are "
            "not allowed in an HTTP header; was it pasted with a line break?"
        )
    return key


def headers(section: ProviderSection) -> dict[str, str]:
    """Return the headers of every request."""
    found = {} if (key := api_key(section)) is None else {"authorization": f"Bearer {key}"}
    if section.kind != "openai":
        found |= {"x-openrouter-metadata": "enabled", "x-openrouter-cache": "false"}
    return found


def timeouts(section: ProviderSection) -> "Timeouts":
    """Return the deadlines of every request."""
    from pipeline.core.http import Timeouts

    return Timeouts(section.timeout.connect, section.timeout.read, section.timeout.total)


@contextlib.contextmanager
def running_server(section: ProviderSection, model: Path, record: Path) -> Iterator[ProviderSection]:
    """Give the section with the address to use; the embedded server runs for the block.

    Raises:
        ConfigError: the address of the API is missing.

    """
    if section.kind != "embedded":
        if section.base_url is None:
            raise ConfigError(
                f"provider.base_url is null; kind {section.kind} needs the address of the API, such as "
                "https://openrouter.ai/api/v1"
            )
        yield section
    elif section.base_url is not None:
        yield section
    else:
        from pipeline.standin.server.server_process import running

        with running(model, record) as base_url:
            yield section.model_copy(update={"base_url": base_url})


def identity(section: ProviderSection, model: Path) -> str | None:
    """Return a digest that tells a retrained stand-in from the one before; None for a server that the config names."""
    if section.kind != "embedded":
        return None
    from pipeline.standin.server.server_process import identity as weights

    return str(weights(model))


def endpoints_document(section: ProviderSection) -> Any:
    """Fetch the list of the model's endpoints; None where the server has no such list.

    Raises:
        ProviderError: the server cannot be reached, or refuses.

    """
    from pipeline.core.http import fetch

    assert section.base_url is not None
    path = f"/models/{quote(section.model, safe='/:@')}/endpoints"
    reply = asyncio.run(fetch(section.base_url, path, headers=headers(section), timeouts=timeouts(section)))
    try:
        document = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        document = None
    if reply.status == 200 and isinstance(document, dict):
        return document
    if reply.status == 404:
        return None
    raise ProviderError(f"{section.base_url}{path}: HTTP {reply.status}: {reply.body[:200].decode('utf-8', 'replace')}")


def admission_of(section: ProviderSection, document: Any, *, needs: frozenset[str], max_tokens: int) -> Admission:
    """Decide which endpoints may answer, and at which price at most.

    Raises:
        ProviderError: none may; the message gives the reasons for each endpoint.

    """
    if section.kind == "openai":
        return Admission([], [], price_of(section.max_price))
    if document is None:
        if section.max_price.prompt is None or section.max_price.completion is None:
            raise ProviderError(
                f"{section.base_url}: lists no endpoints for {section.model!r}, so prices are unknown; set "
                "provider.max_price.prompt and .completion (dollars per million tokens) to bound them"
            )
        return Admission([], [], price_of(section.max_price), verified=False)
    admission = admit(parse_endpoints(document), section, needs=needs, max_tokens=max_tokens)
    if not admission.admitted:
        listed = "\n  ".join(
            f"{endpoint.provider} ({endpoint.tag}): {'; '.join(reasons)}" for endpoint, reasons in admission.refused
        )
        raise ProviderError(
            f"{section.model}: no endpoint may answer under the policy in conf/provider/:\n  "
            f"{listed or '(the server lists none)'}"
        )
    return admission
