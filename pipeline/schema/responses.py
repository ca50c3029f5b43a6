"""`build/<dataset>/responses.jsonl`: one line a prompt, in prompt order; a failure is a line too.

No time and no date: those stay in the ledger, so that the same answers give the same bytes.
"""

from typing import Any

from pipeline.section import Section


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
    response: Any = None
    """The body exactly as received; null when there is none."""
    error: Failure | None = None
    """Why the response is missing or not usable; null when all is well."""
    policy: str | None = None
    """Why the answer lies outside the provider policy (kept, not trained on); null when inside."""
