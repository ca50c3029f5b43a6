"""`datasets.<name>.sampling`, the budgets, and `provider`."""

from typing import Any, Literal

from pydantic import Field

from pipeline.section import Section


class SamplingSection(Section):
    """Everything that decides what the model says, sent explicitly."""

    temperature: float = Field(ge=0, le=2)
    """0 is greedy."""
    top_p: float = Field(gt=0, le=1)
    max_tokens: int = Field(ge=1)
    """Most completion tokens of one answer; also what a request reserves of the budget."""
    seed: int | None = None
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the request body, as they are."""


class BudgetSection(Section):
    """What may be spent. What is in flight counts with the most that it could cost."""

    usd: float | None = Field(None, ge=0)
    """Dollars; null sets no cap."""
    completion_tokens: int | None = Field(None, ge=0)
    """Completion tokens; null sets no cap."""
    on_exhausted: Literal["stop", "fail"] = "stop"
    """stop: write what there is and succeed; fail: write what there is and fail the build."""


class TimeoutSection(Section):
    """Seconds. The total is a deadline of its own: keep-alive bytes reset a read timeout for ever."""

    connect: float = Field(10, gt=0)
    read: float = Field(120, gt=0)
    total: float = Field(900, gt=0)


class RetrySection(Section):
    """How often and how fast a failed request is sent again."""

    attempts: int = Field(5, ge=1)
    """Requests for one prompt, the first included; rate limits do not count."""
    base: float = Field(1, ge=0)
    """Seconds before the second attempt; doubles from there, with jitter."""
    max_wait: float = Field(60, ge=0)
    """Longest wait in seconds, unless the server asks for more."""


class PriceSection(Section):
    """Dollars per million tokens."""

    prompt: float | None = Field(None, ge=0)
    completion: float | None = Field(None, ge=0)


class EvidenceSection(Section):
    """What to ask for besides text, where the server can give it."""

    token_ids: bool = False
    logprobs: bool = False


class ProviderSection(Section):
    """Who answers, at what price, by which rules."""

    kind: Literal["openrouter", "openai", "embedded"]
    base_url: str | None = None
    """Null for the embedded server, which finds a free port of its own."""
    model: str
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; the key itself is never written anywhere."""
    concurrency: int = Field(64, ge=1)
    timeout: TimeoutSection = TimeoutSection()
    retry: RetrySection = RetrySection()
    allow: list[str] = Field(default_factory=list)
    """Providers that may answer; empty means any that `deny` does not name."""
    deny: list[str] = Field(default_factory=list)
    quantizations: list[str] = Field(default_factory=list)
    """Number formats admitted; empty means all but the 4-bit floats (fp4, nvfp4, mxfp4)."""
    max_price: PriceSection = PriceSection()
    data_collection: Literal["allow", "deny"] = "deny"
    evidence: EvidenceSection = EvidenceSection()
