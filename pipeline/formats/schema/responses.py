"""`build/<dataset>/responses.jsonl`: one line a prompt, in prompt order; a failure is a line too.

No time and no date: those stay in the ledger, so that the same answers give the same bytes.
"""

from typing import Any, Literal

from pipeline.core.sections import Section


class Failure(Section):
    """Why there is no answer."""

    kind: str
    """A short code: `http_400`, `deadline`, `budget`, ..."""
    message: str
    """What the server or the client said; never holds a key."""


class ResponseRow(Section):
    """One prompt's outcome."""

    id: str
    """The prompt's id."""
    key: str
    """Hash of everything that decides the answer: the ledger's key."""
    provider: str | None = None
    """Who answered, by the body's own word."""
    model: str | None = None
    """Which model answered, by the body's own word."""
    attempts: int = 0
    """Requests sent for this prompt, over all runs."""
    cost_usd: float | None = None
    """Money that this prompt cost, over all attempts whose cost is known."""
    usage: dict[str, Any] | None = None
    """The body's `usage`."""
    error: Failure | None = None
    """Why the response is missing or not usable; null when all is well."""
    policy: str | None = None
    """Why the answer lies outside the provider policy (kept, not trained on); null when inside."""
    response: Any = None
    """The body as received, its JSON text copied and not written anew; null when there is none, or it is no strict JSON."""
    response_base64: str | None = None
    """The body as received, where it is no strict JSON in UTF-8 (a lone surrogate, a torn body); else absent."""


class ProviderCounts(Section):
    """One provider's part of a dataset."""

    answers: int
    completion_tokens: int
    cost_usd: float


class GenerateSummary(Section):
    """`build/<dataset>/generate.json`: what the dataset's prompts came to. Same answers, same bytes: times are in the ledger."""

    version: Literal[1] = 1
    prompts: int
    answered: int
    """Prompts with an answer, `outside_policy` included."""
    outside_policy: int
    """Answers that must not be trained on."""
    failed: dict[str, int]
    """Prompts whose last request failed, by kind."""
    not_asked: int
    """Prompts that no request was sent for."""
    requests: int
    """Requests sent for these prompts, over all runs."""
    retried: int
    """Prompts that took more than one request."""
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float
    """Known cost of these prompts, over all runs."""
    uncertain_requests: int
    """Requests that may have been billed without our knowing how much."""
    uncertain_usd: float
    """Most that those can have cost."""
    usd_per_million_tokens: float | None
    """Cost by completion tokens; null without any."""
    remaining_usd: float | None
    """Most that asking the unanswered prompts can cost; null when no price is known."""
    by_provider: dict[str, ProviderCounts]
    endpoints: list[dict[str, Any]] | None
    """Who was admitted, at which price, when this dataset was last asked for; null when nothing had to be asked."""
    refused: list[dict[str, Any]] | None
    """Who was not, and why."""
