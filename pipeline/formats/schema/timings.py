"""`build/<dataset>/timings.jsonl`, a line for each response, and its summary `timings.json`.

These are the only files of a build with times: two builds with the same answers differ in them and in the pages that
show them.
"""

from typing import Literal

from pipeline.core.sections import Section


class Timing(Section):
    """Time of the request for one prompt, and its duration."""

    id: str
    """The prompt's id."""
    key: str
    """The ledger's key, as in responses.jsonl."""
    provider: str | None = None
    sent_at: float | None = None
    """Seconds since the epoch."""
    seconds: float | None = None
    """Seconds from the request to the answer's last byte; null if there is no answer or the time is unknown."""
    completion_tokens: int | None = None


class Latency(Section):
    """Seconds that one provider takes for an answer."""

    answers: int
    """Answers whose time is known."""
    p50_seconds: float
    p95_seconds: float


class TimingsSummary(Section):
    """Speed of a dataset's answers. A key that several prompts share counts once."""

    version: Literal[1] = 1
    answers: int
    measured: int
    """Answers whose time is known."""
    busy_seconds: float
    """Seconds in which at least one of the measured answers was under way."""
    answers_per_second: float | None
    """Measured answers by busy seconds; null without any."""
    completion_tokens_per_second: float | None
    by_provider: dict[str, Latency]
