"""The bytes of a prompt's request, and the key under which its answer is kept. Pure."""

import hashlib
from typing import Any, NamedTuple

import orjson

from pipeline.stages.generate.config import ProviderSection, SamplingSection
from pipeline.stages.generate.ledger.records import Charge
from pipeline.stages.generate.limits.money import Price, most_prompt_tokens
from pipeline.stages.generate.provider.policy import Admission, admitted_quantizations, provider_block

_KEY_VERSION = 1


class PromptRow(NamedTuple):
    """A prompt, as `schema.prompts.Prompt` describes it, without the cost of a pydantic model for a million rows."""

    id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None


class PreparedRequest(NamedTuple):
    """A request that can be sent."""

    id: str
    """Id of the prompt."""
    key: str
    """SHA-256 in hex of everything that decides the answer."""
    content: bytes
    """JSON of the body's first part, the prompt. The rest is the same for all: `rotation.Rotation.tail`."""
    worst_case: Charge
    """Most that it can cost, and most completion tokens that it can be billed for."""

    def body(self, tail: bytes) -> bytes:
        """Return the JSON to send; ``tail`` is `RequestBuilder.template` as JSON."""
        return b"%b,%b" % (self.content, tail[1:])


class RequestBuilder:
    """Builds the requests of one dataset under one configuration."""

    def __init__(
        self, sampling: SamplingSection, provider: ProviderSection, *, send_tools: bool, identity: str | None
    ) -> None:
        self.sampling = sampling
        self.provider = provider
        self._send_tools = send_tools
        self.identity = identity
        """Tells one stand-in from another; None for a real provider."""
        decides = {
            "version": _KEY_VERSION,
            "kind": provider.kind,
            # an openai server is identified by its address alone, a router by the policy in its requests
            "server": provider.base_url if provider.kind == "openai" else identity,
            "model": provider.model,
            "sampling": sampling.model_dump(mode="json"),
            "evidence": provider.evidence.model_dump(mode="json"),
            "policy": None
            if provider.kind == "openai"
            else [sorted(provider.allow), sorted(provider.deny), admitted_quantizations(provider)],
        }
        self.most_tokens = sampling.max_tokens
        """Completion tokens that one request can be billed for."""
        self._prefix = hashlib.sha256(orjson.dumps(decides, option=orjson.OPT_SORT_KEYS))

    def key(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
        """Return the answer's name in the ledger.

        Price caps, concurrency, timeouts and retries do not decide an answer, so they are not part of it.
        """
        digest = self._prefix.copy()
        digest.update(orjson.dumps([messages, tools if self._send_tools else None], option=orjson.OPT_SORT_KEYS))
        return digest.hexdigest()

    def parameters(self) -> frozenset[str]:
        """Return the names of the parameters that an endpoint must support."""
        names = {"temperature", "top_p", "max_tokens", *self.sampling.extra}
        names |= {"seed"} if self.sampling.seed is not None else set()
        return frozenset(names | ({"tools"} if self._send_tools else set()))

    def template(self, admission: Admission) -> dict[str, Any]:
        """Return a body without the prompt. It states all sampling, since a provider's own defaults fill any gap."""
        body: dict[str, Any] = {
            "model": self.provider.model,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "max_tokens": self.sampling.max_tokens,
            "stream": False,
        }
        if self.sampling.seed is not None:
            body["seed"] = self.sampling.seed
        if self.provider.evidence.logprobs:
            body["logprobs"] = True
        if self.provider.evidence.token_ids:
            body["return_token_ids"] = True
        if self.provider.kind != "openai":
            body["provider"] = provider_block(self.provider, admission)
            body["plugins"] = [{"id": "context-compression", "enabled": False}]  # this plugin would edit the prompt
        return body | self.sampling.extra

    def content_size(self, prompt: PromptRow) -> int:
        """Return the bytes of a prompt's part of the body; it has at most that many tokens."""
        return len(self._content(prompt))

    def _content(self, prompt: PromptRow) -> bytes:
        content = b'{"messages":' + orjson.dumps(prompt.messages)
        return content + b',"tools":' + orjson.dumps(prompt.tools) if self._send_tools and prompt.tools else content

    def prepare(self, prompt: PromptRow, key: str, price: Price) -> PreparedRequest:
        """Build the request for a prompt."""
        content = self._content(prompt)
        tokens = self.most_tokens
        cost = price.cost(most_prompt_tokens(len(content), len(prompt.messages)), tokens)
        return PreparedRequest(prompt.id, key, content, Charge(cost, tokens))
