"""timings.jsonl and its summary: when each answer was asked for, and how long it took."""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import orjson

from pipeline.core.files.jsonl import read_lines
from pipeline.formats.schema.timings import Latency, Timing, TimingsSummary
from pipeline.stages.generate.ledger.records import LatestAttempt


def quantile(ordered: "array[float] | list[float]", share: float) -> float:
    """Return the value below which that share of the sorted values lies: one of them, never a mean of two."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def busy(starts: "array[float]", seconds: "array[float]") -> float:
    """Return the length of the union of the intervals, in seconds: the time between two runs does not count."""
    total, end = 0.0, float("-inf")
    for index in sorted(range(len(starts)), key=starts.__getitem__):
        start, length = starts[index], seconds[index]
        if start + length > end:
            total += start + length - max(start, end)
            end = start + length
    return total


class TimingsWriter:
    """Writes a line of timings.jsonl for each prompt, and sums them up."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._answers = 0
        self._tokens = 0
        self._starts = array("d")
        self._seconds = array("d")
        self._by_provider: dict[str, array[float]] = {}

    def add(self, prompt_id: str, key: str, attempt: LatestAttempt | None, *, key_is_new: bool) -> None:
        """Write the line of one prompt. A key that several prompts share is measured once."""
        provider = sent_at = seconds = tokens = None
        if attempt is not None and attempt.answered:
            self._answers += key_is_new
            provider, tokens = attempt.provider, attempt.completion_tokens
            if attempt.seconds is not None and attempt.sent_at is not None:
                sent_at, seconds = round(attempt.sent_at, 3), round(attempt.seconds, 3)
                if key_is_new:
                    self._measure(provider or "?", sent_at, seconds, tokens or 0)
        row = {
            "id": prompt_id,
            "key": key,
            "provider": provider,
            "sent_at": sent_at,
            "seconds": seconds,
            "completion_tokens": tokens,
        }
        self._file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))

    def _measure(self, provider: str, sent_at: float, seconds: float, tokens: int) -> None:
        self._tokens += tokens
        self._starts.append(sent_at)
        self._seconds.append(seconds)
        self._by_provider.setdefault(provider, array("d")).append(seconds)

    def summary(self) -> TimingsSummary:
        """Return the summary of all prompts so far."""
        total = busy(self._starts, self._seconds)
        rate, tokens = (round(amount / total, 3) if total else None for amount in (len(self._seconds), self._tokens))
        ordered = {name: sorted(values) for name, values in sorted(self._by_provider.items())}
        return TimingsSummary(
            answers=self._answers,
            measured=len(self._seconds),
            busy_seconds=round(total, 3),
            answers_per_second=rate,
            completion_tokens_per_second=tokens,
            by_provider={
                name: Latency(
                    answers=len(values), p50_seconds=quantile(values, 0.5), p95_seconds=quantile(values, 0.95)
                )
                for name, values in ordered.items()
            },
        )


def read_timings(path: Path) -> Iterator[Timing | None]:
    """Yield the lines of another clone's timings.jsonl, one for each line of responses.jsonl.

    A damaged line gives None. After the last line, and where there is no file, None follows without end.
    """
    if path.exists():
        for _, text in read_lines(path):
            try:
                yield Timing.model_validate_json(text)
            except ValueError:
                yield None
    while True:
        yield None
