"""`build/<dataset>/responses.jsonl`: one line for each prompt, in prompt order, failures included.

Times and dates stay in the ledger, so that the same answers give the same bytes.
"""

from typing import Any, Literal

from pipeline.core.sections import Section


class Failure(Section):
    """The reason why there is no answer."""

    kind: str
    """A short code: `http_400`, `deadline`, `budget`, ..."""
    message: str
    """Message of the server or the client; never contains a key."""


class ResponseRow(Section):
    """The result for one prompt."""

    id: str
    """The prompt's id."""
    key: str
    """The ledger's key: a hash of everything that decides the answer."""
    provider: str | None = None
    """The provider that answered, as the body names it."""
    model: str | None = None
    """The model that answered, as the body names it."""
    attempts: int = 0
    """Requests sent for this prompt, over all runs."""
    cost_usd: float | None = None
    """Cost of this prompt in US dollars, over all attempts whose cost is known."""
    usage: dict[str, Any] | None = None
    """The body's `usage`."""
    error: Failure | None = None
    """The reason why the response is missing or not usable; null if it is usable."""
    policy: str | None = None
    """The reason why the answer is outside the provider policy (it is kept, and not trained on); null if it is
    inside."""
    response: Any = None
    """The body's JSON text, copied as received; null if there is no body, or it is not strict JSON."""
    response_base64: str | None = None
    """The body as received, if it is not strict JSON in UTF-8 (a lone surrogate, a cut body); else absent."""


class ProviderCounts(Section):
    """One provider's part of a dataset."""

    answers: int
    completion_tokens: int
    cost_usd: float


class GenerateSummary(Section):
    """`build/<dataset>/generate.json`: counts and costs of a dataset's answers.

    The same answers give the same bytes.
    """

    version: Literal[1] = 1
    prompts: int
    answered: int
    """Prompts with an answer, `outside_policy` included."""
    outside_policy: int
    """Answers that must not be trained on."""
    failed: dict[str, int]
    """Prompts whose last request failed, by kind."""
    not_asked: int
    """Prompts for which no request was sent."""
    requests: int
    """Requests sent for these prompts, over all runs."""
    retried: int
    """Prompts that took more than one request."""
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float
    """Known cost of these prompts, over all runs."""
    uncertain_requests: int
    """Requests that may have been billed at an unknown cost."""
    uncertain_usd: float
    """Most that these requests can have cost."""
    usd_per_million_tokens: float | None
    """Cost per million completion tokens; null if there are none."""
    remaining_usd: float | None
    """Most that the unanswered prompts can cost; null if no price is known."""
    by_provider: dict[str, ProviderCounts]
    endpoints: list[dict[str, Any]] | None
    """Endpoints that were admitted, with prices, at this dataset's last requests; null if no request was needed."""
    refused: list[dict[str, Any]] | None
    """Endpoints that were not admitted, with reasons."""
