"""`build/<dataset>/timings.jsonl`, one line a prompt beside its line of responses.jsonl, and its summary `timings.json`.

The only files of a build that hold times: two builds with the same answers differ in them, and in the pages that show them.
"""

from typing import Literal

from pipeline.core.sections import Section


class Timing(Section):
    """When one prompt's answer was asked for, and how long it took."""

    id: str
    """The prompt's id."""
    key: str
    """The ledger's key, as in responses.jsonl."""
    provider: str | None = None
    sent_at: float | None = None
    """Seconds since the epoch."""
    seconds: float | None = None
    """From the request to the answer's last byte; null without an answer, or when it is not known."""
    completion_tokens: int | None = None


class Latency(Section):
    """One provider's seconds to an answer."""

    answers: int
    """Answers whose time is known."""
    p50_seconds: float
    p95_seconds: float


class TimingsSummary(Section):
    """How fast a dataset was answered. A key that several prompts share counts once."""

    version: Literal[1] = 1
    answers: int
    measured: int
    """Answers whose time is known."""
    busy_seconds: float
    """Time in which at least one of the measured answers was under way."""
    answers_per_second: float | None
    """Measured answers by busy seconds; null without any."""
    completion_tokens_per_second: float | None
    by_provider: dict[str, Latency]
