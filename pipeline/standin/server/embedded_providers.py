"""The providers that the embedded server imitates: one model with the habits of real providers behind a router."""

from dataclasses import dataclass
from typing import Any

MODEL = "aerie/tiny-kimi"
"""The only model served."""
CONTEXT = 4096
"""Longest prompt plus answer, in tokens."""
MAX_COMPLETION = 1024
"""Longest answer, in tokens."""

_COMMON = frozenset(
    {
        "max_completion_tokens",
        "max_tokens",
        "temperature",
        "top_p",
        "seed",
        "stop",
        "tools",
        "tool_choice",
        "reasoning",
        "include_reasoning",
    },
)


@dataclass(frozen=True, slots=True)
class EmbeddedProvider:
    """One provider: its prices, its stated properties, and its changes to an answer."""

    name: str
    """Display name, in the body's `provider`."""
    tag: str
    """Its name in routing rules."""
    quantization: str
    prompt_price: str
    """Dollars per token, as a decimal string."""
    completion_price: str
    weight: int
    """Its share of the requests for which routing admits several providers."""
    extra_parameters: frozenset[str] = frozenset()
    """Parameters that it supports beyond the usual ones."""
    trims: bool = False
    """It cuts white space at the end of the reasoning and at both ends of the content."""
    bills_end: bool = True
    """It counts the end token in `completion_tokens`."""
    raw_tools: bool = False
    """It leaves tool calls, markers included, in the content."""
    coarse: bool = False
    """It samples from logits rounded to whole numbers, as a bad quantization would."""

    @property
    def parameters(self) -> frozenset[str]:
        """The request parameters that it supports; others are silently dropped."""
        return _COMMON | self.extra_parameters

    def admits(self, slug: str) -> bool:
        """Return whether a routing slug names this provider: its tag, or the part before the slash."""
        return slug.lower() in (self.tag, self.tag.partition("/")[0])

    def endpoint(self) -> dict[str, Any]:
        """Return its entry in the endpoint list."""
        return {
            "name": f"{self.name} | {MODEL}",
            "model_id": MODEL,
            "model_name": "Aerie: tiny Kimi",
            "provider_name": self.name,
            "tag": self.tag,
            "context_length": CONTEXT,
            "pricing": {
                "prompt": self.prompt_price,
                "completion": self.completion_price,
                "request": "0",
                "image": "0",
                "discount": 0,
            },
            "quantization": self.quantization,
            "max_completion_tokens": MAX_COMPLETION,
            "max_prompt_tokens": None,
            "supported_parameters": sorted(self.parameters),
            "status": 0,
            "uptime_last_5m": 100,
            "uptime_last_30m": 100,
            "uptime_last_1d": 100,
            "supports_implicit_caching": False,
        }


PROVIDERS = (
    EmbeddedProvider("Exact", "exact/bf16", "bf16", "0.0000006", "0.000003", 4, frozenset({"return_token_ids"})),
    EmbeddedProvider(
        "Bytewise", "bytewise/bf16", "bf16", "0.0000006", "0.000003", 4, frozenset({"logprobs", "top_logprobs"})
    ),
    EmbeddedProvider("Plain", "plain/int4", "int4", "0.0000005", "0.0000025", 5),
    EmbeddedProvider("Trimmer", "trimmer/fp8", "fp8", "0.0000005", "0.0000024", 4, trims=True),
    EmbeddedProvider("Thrifty", "thrifty/fp8", "fp8", "0.00000045", "0.00000225", 3, bills_end=False),
    EmbeddedProvider("Rawhide", "rawhide/int4", "int4", "0.0000005", "0.0000025", 3, raw_tools=True),
    EmbeddedProvider("Coarse", "coarse/fp4", "fp4", "0.0000002", "0.000001", 3, coarse=True),
)
