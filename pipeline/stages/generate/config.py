"""Config sections of the stage: `datasets.<name>.sampling`, the budgets, and `provider`."""

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from pipeline.core.sections import Address, Section, Variable
from pipeline.stages.generate.requests.extra_fields import model_objection, objections

Quantization = Literal[
    "int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32", "unknown"
]
"""Every number format that the API knows."""

HIGHEST_PRICE = 10_000.0
"""Dollars per million tokens. A price above it is a mistake, and would overflow the ledger's sums."""


class SamplingSection(Section):
    """Everything that decides the model's answer, sent explicitly."""

    temperature: float = Field(ge=0, le=2)
    """0 samples greedily."""
    top_p: float = Field(gt=0, le=1)
    max_tokens: int = Field(ge=1, le=10_000_000)
    """Most completion tokens of one answer; a request reserves that many of the budget."""
    seed: int | None = None
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the request body, sent unchanged."""

    @field_validator("extra")
    @classmethod
    def _is_harmless(cls, extra: dict[str, Any]) -> dict[str, Any]:
        if reasons := objections(extra):
            raise ValueError("; ".join(reasons))
        return extra


class BudgetSection(Section):
    """Caps on all spending, with one purse for real providers and another for the stand-in.

    Spending adds up over all runs, branches and experiments of a clone, because the ledger keeps it: a series of edits
    cannot spend a cap several times. A request in flight, or one that was never answered, counts with the most that it
    could cost. An answer that came with a responses.jsonl counts with what it cost, whoever paid.
    """

    usd: float | None = Field(None, ge=0, le=1e6)
    """Dollars; null sets no cap."""
    completion_tokens: int | None = Field(None, ge=0)
    """Completion tokens; null sets no cap."""
    on_exhausted: Literal["stop", "fail"] = "stop"
    """stop: write the answers so far and succeed; fail: write them and fail the build."""


class TimeoutSection(Section):
    """Seconds. The total is a separate deadline, because keep-alive bytes reset the read timeout again and again."""

    connect: float = Field(10, gt=0)
    read: float = Field(120, gt=0)
    total: float = Field(900, gt=0)


class RetrySection(Section):
    """How often and how fast a failed request is sent again."""

    attempts: int = Field(5, ge=1)
    """Most unbilled failures of one prompt in a run, the first included; rate limits do not count."""
    repay: int = Field(1, ge=0)
    """Times that a prompt may be asked again after a request that was, or may have been, billed; 0 never pays twice."""
    base: float = Field(1, ge=0)
    """Seconds before the second attempt; doubles from there, with jitter."""
    max_wait: float = Field(60, ge=0)
    """Longest wait in seconds, unless the server asks for more."""
    server_wait: float = Field(900, ge=0)
    """Longest wait in seconds that a server may ask for; a longer one is cut to this and reported."""
    breaker: int = Field(10, ge=1)
    """Failures in a row, of any prompts, after which sending pauses; then one request at a time probes the server."""
    patience: float = Field(3600, gt=0)
    """Seconds without an answer after which the run gives up; all answers so far are kept."""


class PriceSection(Section):
    """Dollars per million tokens."""

    prompt: float | None = Field(None, ge=0, le=HIGHEST_PRICE)
    completion: float | None = Field(None, ge=0, le=HIGHEST_PRICE)


class EvidenceSection(Section):
    """Evidence to ask for besides the text, where the server can give it."""

    token_ids: bool = False
    logprobs: bool = False


class ProviderSection(Section):
    """The server that answers, its prices, and the rules for its providers."""

    kind: Literal["openrouter", "openai", "embedded"]
    base_url: Address | None = None
    """Null for the embedded server, which chooses a free port."""
    model: str = Field(min_length=1)
    answers_as: list[str] = Field(default_factory=list)
    """Further names of the same model in answers, such as a dated one; any other name is outside the policy."""
    api_key_env: Variable | None = None
    """Name of the environment variable with the key; the key itself is never written anywhere."""
    concurrency: int = Field(64, ge=1)
    """Most requests in flight."""
    timeout: TimeoutSection = TimeoutSection()
    retry: RetrySection = RetrySection()
    allow: list[str] = Field(default_factory=list)
    """Providers that may answer, by name or tag; empty admits all that `deny` does not name."""
    deny: list[str] = Field(default_factory=list)
    quantizations: list[Quantization] = Field(default_factory=list)
    """Number formats that may answer; empty admits all but the 4-bit floats (fp4, nvfp4, mxfp4)."""
    max_price: PriceSection = PriceSection()
    """Endpoints with a higher price are not used. For kind openai, the price of a token (null: free)."""
    data_collection: Literal["allow", "deny"] = "deny"
    errors: Literal["unbilled", "unknown"] = "unknown"
    """How a server error (500, 502, or an error in an HTTP 200) counts: as not billed, or as uncertain spend."""
    wait_for_store: bool = True
    """Whether to wait while another generator of this clone runs; false gives up at once."""
    evidence: EvidenceSection = EvidenceSection()

    @model_validator(mode="after")
    def _asks_one_model(self) -> Self:
        if self.kind == "openrouter" and (why := model_objection(self.model)) is not None:
            raise ValueError(f"model: {why}")
        return self
