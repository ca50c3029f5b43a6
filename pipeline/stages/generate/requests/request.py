"""A prompt to the bytes of a request, and to the key under which its answer is kept. Pure."""

import hashlib
from typing import Any, NamedTuple

import orjson

from pipeline.stages.generate.config import ProviderSection, SamplingSection
from pipeline.stages.generate.limits.money import Price, most_prompt_tokens
from pipeline.stages.generate.provider.policy import Admission, admitted_quantizations, provider_block

_KEY_VERSION = 1


class Question(NamedTuple):
    """A prompt, as `schema.prompts.Prompt` describes it, without the cost of a model for each of a million rows."""

    id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None


class Ask(NamedTuple):
    """One request that can be sent."""

    id: str
    """The prompt's."""
    key: str
    """sha256 hex of everything that decides the answer."""
    content: bytes
    """JSON of the body's first part: the prompt. The rest is the same for all, see `rotation.Rotation.tail`."""
    most_pico: int
    """Most that it can cost, in picodollars."""
    most_tokens: int
    """Most completion tokens that it can be billed for."""

    def body(self, tail: bytes) -> bytes:
        """JSON to send; ``tail`` is `Asker.template` as JSON."""
        return b"%b,%b" % (self.content, tail[1:])


class Asker:
    """Makes the requests of one dataset under one configuration."""

    def __init__(
        self, sampling: SamplingSection, provider: ProviderSection, *, send_tools: bool, identity: str | None
    ) -> None:
        self._sampling = sampling
        self._provider = provider
        self._send_tools = send_tools
        self.identity = identity
        """What tells one stand-in from another; null for a real provider."""
        decides = {
            "version": _KEY_VERSION,
            "kind": provider.kind,
            # an openai server is known by its address alone; a router by the policy that it is given
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
        """Name of the answer in the ledger. Price caps, concurrency, timeouts and retries do not decide an answer, so they are not in it."""
        digest = self._prefix.copy()
        digest.update(orjson.dumps([messages, tools if self._send_tools else None], option=orjson.OPT_SORT_KEYS))
        return digest.hexdigest()

    def parameters(self) -> frozenset[str]:
        """Names of the parameters that an endpoint must understand."""
        names = {"temperature", "top_p", "max_tokens", *self._sampling.extra}
        names |= {"seed"} if self._sampling.seed is not None else set()
        return frozenset(names | ({"tools"} if self._send_tools else set()))

    def template(self, admission: Admission) -> dict[str, Any]:
        """Everything of a body but the prompt: sampling in full, since a provider's own defaults fill any gap."""
        body: dict[str, Any] = {
            "model": self._provider.model,
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "max_tokens": self._sampling.max_tokens,
            "stream": False,
        }
        if self._sampling.seed is not None:
            body["seed"] = self._sampling.seed
        if self._provider.evidence.logprobs:
            body["logprobs"] = True
        if self._provider.evidence.token_ids:
            body["return_token_ids"] = True
        if self._provider.kind != "openai":
            body["provider"] = provider_block(self._provider, admission)
            body["plugins"] = [{"id": "context-compression", "enabled": False}]  # it would edit the prompt
        return body | self._sampling.extra

    def content_size(self, prompt: Question) -> int:
        """Bytes of a prompt's part of the body: no fewer than its tokens."""
        return len(self._content(prompt))

    def _content(self, prompt: Question) -> bytes:
        content = b'{"messages":' + orjson.dumps(prompt.messages)
        return content + b',"tools":' + orjson.dumps(prompt.tools) if self._send_tools and prompt.tools else content

    def ask(self, prompt: Question, key: str, price: Price) -> Ask:
        """Make the request for a prompt."""
        content = self._content(prompt)
        tokens = self.most_tokens
        cost = price.cost(most_prompt_tokens(len(content), len(prompt.messages)), tokens)
        return Ask(prompt.id, key, content, cost, tokens)
