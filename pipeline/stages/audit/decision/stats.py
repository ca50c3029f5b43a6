"""Counts and distributions over all rows, and a scorecard for each provider."""

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.formats.schema.findings import Finding
from pipeline.stages.audit.inputs.batch import Batch

EXACT = ("ids", "logprobs")
"""Evidence that comes from the sampled tokens themselves."""
REPEATS = {"token_loop", "repeated_ngrams", "compression"}
TOOL_FAULTS = {"tool_json", "tool_name", "tool_schema", "tool_markup"}


MOST_NAMES = 64
"""Names that are counted one by one; what comes after counts together, so that hostile answers cannot grow the report without end."""
OTHERS = "(others)"
MOST_OUTLIERS = 10
_LONGEST = 160


def add_names(counter: Counter[str], more: Mapping[str, int]) -> None:
    """Add counts by name, long names cut, and no more than MOST_NAMES of them."""
    for name, count in more.items():
        counter[counted_name(counter, name)] += count


def counted_name(names: Collection[str], name: str) -> str:
    """Name under which to count: its own while there is room."""
    name = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}\u2026"
    return name if name in names or len(names) < MOST_NAMES else OTHERS


@dataclass
class ProviderTotals:
    """What one provider's rows add up to."""

    rows: int = 0
    evidence: Counter[str] = field(default_factory=Counter)
    status: Counter[str] = field(default_factory=Counter)
    errors: int = 0
    """Rows with a finding of severity error."""
    truncated: int = 0
    repeats: int = 0
    """Rows that a check of degeneration complained about."""
    calls: int = 0
    bad_calls: int = 0
    """Tool calls with wrong markup, JSON, name or arguments."""
    prompt_tokens: int = 0
    billed_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    costed: int = 0
    """Rows whose cost is known."""
    costed_tokens: int = 0
    """Billed tokens of those rows."""
    deltas: "array[int]" = field(default_factory=lambda: array("q"))
    latencies: "array[float]" = field(default_factory=lambda: array("d"))
    models: Counter[str] = field(default_factory=Counter)

    def merge(self, other: "ProviderTotals") -> None:
        """Add another part's rows of the same provider."""
        for item in fields(self):
            if item.name == "models":
                add_names(self.models, other.models)
                continue
            total = getattr(self, item.name)
            total += getattr(other, item.name)  # in place where it is an array: thousands of parts are merged
            setattr(self, item.name, total)


class Outlier(NamedTuple):
    """A row whose bill does not agree."""

    id: str
    provider: str | None
    billed: int | None
    delta: int
    """Billed minus rebuilt."""


def largest(outliers: Iterable[Outlier]) -> list[Outlier]:
    """Give the largest differences; of equal ones those that come first."""
    return sorted(outliers, key=lambda outlier: -abs(outlier.delta))[:MOST_OUTLIERS]


@dataclass
class Stats:
    """Over all rows."""

    rows: int = 0
    providers: dict[str, ProviderTotals] = field(default_factory=dict)
    finish: Counter[str] = field(default_factory=Counter)
    outliers: list[Outlier] = field(default_factory=list)
    """Rows whose billed and rebuilt tokens differ most, the largest first."""
    _lengths: list[NDArray[np.int32]] = field(default_factory=list)
    _prompts: list[NDArray[np.int32]] = field(default_factory=list)
    _standing: list[NDArray[np.int32]] = field(default_factory=list)
    _standings: dict[tuple[str, str | None], int] = field(default_factory=dict)

    def add(self, batch: Batch, found: list[tuple[int, Finding]]) -> None:
        """Add a batch."""
        self.rows += batch.size
        self._lengths.append(batch.completion.lengths.astype(np.int32))
        self._prompts.append(batch.prompt.lengths.astype(np.int32))
        standing = [
            self._standings.setdefault(pair, len(self._standings))
            for pair in zip(batch.column("status"), batch.column("reason"), strict=True)
        ]
        self._standing.append(np.array(standing, dtype=np.int32))
        columns = [batch.column(name) for name in ("provider", "billed_tokens", "count_delta")]
        self.outliers = largest(
            Outlier(row_id, *values) for row_id, *values in zip(batch.ids, *columns, strict=True) if values[-1]
        )
        add_names(self.finish, Counter(finish or "unknown" for finish in batch.column("finish_reason")))
        add_to_providers(self.providers, batch, found)

    def merge(self, later: "Stats") -> None:
        """Add the rows that come after."""
        self.rows += later.rows
        self.outliers = largest([*self.outliers, *later.outliers])
        add_names(self.finish, later.finish)
        self._lengths += later._lengths
        self._prompts += later._prompts
        codes = np.array(
            [self._standings.setdefault(pair, len(self._standings)) for pair in later._standings], dtype=np.int32
        )
        self._standing += [codes[standing] for standing in later._standing]
        for name, provider in later.providers.items():
            self.providers.setdefault(counted_name(self.providers, name), ProviderTotals()).merge(provider)

    def standing(self) -> tuple[list[tuple[str, str | None]], NDArray[np.int64]]:
        """Pairs of status and reason that occur, and which of them each row has, in row order."""
        return list(self._standings), np.concatenate([*self._standing, np.zeros(0, dtype=np.int64)])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each completion."""
        return np.concatenate([*self._lengths, np.zeros(0, dtype=np.int64)])

    @property
    def prompt_lengths(self) -> NDArray[np.int64]:
        """Tokens of each prompt."""
        return np.concatenate([*self._prompts, np.zeros(0, dtype=np.int64)])

    def total(self, name: str) -> float:
        """Sum of a number over all providers."""
        return float(sum(getattr(provider, name) for provider in self.providers.values()))

    def counts(self, name: str) -> Counter[str]:
        """Sum of a counter over all providers."""
        return sum((getattr(provider, name) for provider in self.providers.values()), Counter())

    def latencies(self) -> dict[str, NDArray[np.float64]]:
        """Milliseconds of each answer whose line has them, by provider."""
        return {
            name: np.array(provider.latencies, dtype=np.float64) for name, provider in sorted(self.providers.items())
        }

    def deltas(self) -> NDArray[np.int64]:
        """Billed minus rebuilt tokens of each row that has both."""
        return np.concatenate(
            [
                *(np.array(provider.deltas, dtype=np.int64) for provider in self.providers.values()),
                np.zeros(0, dtype=np.int64),
            ]
        )


def add_to_providers(providers: dict[str, ProviderTotals], batch: Batch, found: list[tuple[int, Finding]]) -> None:
    """Add each row of a batch to its provider."""
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(batch.column("provider")):
        rows_of.setdefault(name or "unknown", []).append(row)
    marks = {
        "errors": {row for row, finding in found if finding.severity == "error"},
        "repeats": {row for row, finding in found if finding.check in REPEATS},
        "truncated": set(np.flatnonzero(batch.cut).tolist()),
    }
    bad_calls = Counter(
        row for row, _position in {(row, finding.position) for row, finding in found if finding.check in TOOL_FAULTS}
    )
    for name, rows in rows_of.items():
        provider = providers.setdefault(counted_name(providers, name), ProviderTotals())
        provider.rows += len(rows)
        for mark, marked in marks.items():
            setattr(provider, mark, getattr(provider, mark) + sum(row in marked for row in rows))
        for row in rows if any(batch.calls) else ():
            calls = batch.calls[row]
            provider.calls += calls
            provider.bad_calls += min(bad_calls[row], calls)
        _add_usage(provider, batch, rows)


def _add_usage(provider: ProviderTotals, batch: Batch, rows: list[int]) -> None:
    """Add what some rows of a provider were known by, were charged, and took."""
    evidence, status, deltas, billed = (
        batch.column(name) for name in ("evidence", "status", "count_delta", "billed_tokens")
    )
    lengths, prompts = batch.completion.lengths.tolist(), batch.prompt.lengths.tolist()
    provider.evidence.update(evidence[row] or "none" for row in rows)
    provider.status.update(status[row] for row in rows)
    provider.deltas.extend(deltas[row] for row in rows if deltas[row] is not None)
    models: Counter[str] = Counter()
    for row in rows:
        answer = batch.answers[row]
        charged = billed[row] or 0
        provider.prompt_tokens += answer.prompt_tokens if answer.prompt_tokens is not None else prompts[row]
        provider.completion_tokens += lengths[row]
        provider.billed_tokens += charged
        if answer.cost_usd is not None:
            provider.costed += 1
            provider.cost_usd += answer.cost_usd
            provider.costed_tokens += charged
        if answer.latency_ms is not None:
            provider.latencies.append(answer.latency_ms)
        if answer.model is not None:
            models[answer.model] += 1
    add_names(provider.models, models)
