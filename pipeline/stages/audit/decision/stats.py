"""Counts and distributions over all rows, and totals of each provider."""

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
"""Checks that find an answer which repeats itself."""
TOOL_FAULTS = {"tool_json", "tool_name", "tool_schema", "tool_markup"}
"""Checks that find a tool call which cannot be executed."""
MOST_NAMES = 64
"""Names with a count of their own. All later names share one, so that hostile answers cannot grow the report."""
OTHERS = "(others)"
MOST_OUTLIERS = 10
_LONGEST = 160


def add_names(counter: Counter[str], more: Mapping[str, int]) -> None:
    """Add counts by name; long names are cut, and the counter holds at most MOST_NAMES of them and OTHERS."""
    for name, count in more.items():
        counter[counted_name(counter, name)] += count


def counted_name(names: Collection[str], name: str) -> str:
    """Return the name under which to count: its own while there is room, then OTHERS."""
    name = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}\u2026"
    return name if name in names or len(names) < MOST_NAMES else OTHERS


@dataclass
class ProviderTotals:
    """Totals over the rows of one provider."""

    rows: int = 0
    evidence: Counter[str] = field(default_factory=Counter)
    prompt_evidence: Counter[str] = field(default_factory=Counter)
    status: Counter[str] = field(default_factory=Counter)
    errors: int = 0
    """Number of rows with a finding of severity error."""
    truncated: int = 0
    repeats: int = 0
    """Number of rows with a finding of a check in REPEATS."""
    calls: int = 0
    bad_calls: int = 0
    """Number of tool calls with a finding of a check in TOOL_FAULTS."""
    prompt_tokens: int = 0
    billed_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    costed: int = 0
    """Number of rows whose cost is known."""
    costed_tokens: int = 0
    """Number of billed tokens of those rows."""
    deltas: "array[int]" = field(default_factory=lambda: array("q"))
    latencies: "array[float]" = field(default_factory=lambda: array("d"))
    models: Counter[str] = field(default_factory=Counter)

    def merge(self, other: "ProviderTotals") -> None:
        """Add the totals over other rows of the same provider."""
        for item in fields(self):
            if item.name == "models":
                add_names(self.models, other.models)
                continue
            total = getattr(self, item.name)
            total += getattr(other, item.name)  # in place for an array: there are thousands of batches to merge
            setattr(self, item.name, total)


class Outlier(NamedTuple):
    """A row whose bill and ids differ in the number of tokens."""

    id: str
    provider: str | None
    billed: int | None
    delta: int
    """Billed minus rebuilt tokens."""


def largest(outliers: Iterable[Outlier]) -> list[Outlier]:
    """Return the rows with the largest differences; among equal ones the earlier rows."""
    return sorted(outliers, key=lambda outlier: -abs(outlier.delta))[:MOST_OUTLIERS]


@dataclass
class Stats:
    """Counts and distributions over all rows."""

    rows: int = 0
    providers: dict[str, ProviderTotals] = field(default_factory=dict)
    finish: Counter[str] = field(default_factory=Counter)
    outliers: list[Outlier] = field(default_factory=list)
    """Rows with the largest differences between billed and rebuilt tokens, the largest first."""
    _lengths: list[NDArray[np.int32]] = field(default_factory=list)
    _prompts: list[NDArray[np.int32]] = field(default_factory=list)
    _pair_of: list[NDArray[np.int32]] = field(default_factory=list)
    """[rows] in pieces: number of each row's pair of status and reason."""
    _pairs: dict[tuple[str, str | None], int] = field(default_factory=dict)
    """Number of each pair of status and reason that occurs."""

    def add(self, batch: Batch, findings: list[tuple[int, Finding]]) -> None:
        """Add a batch and the findings about its rows, to an object that has no rows yet."""
        self.rows += batch.size
        self._lengths.append(batch.completion.lengths.astype(np.int32))
        self._prompts.append(batch.prompt.lengths.astype(np.int32))
        pair_of = [
            self._pairs.setdefault(pair, len(self._pairs))
            for pair in zip(batch.column("status"), batch.column("reason"), strict=True)
        ]
        self._pair_of.append(np.array(pair_of, dtype=np.int32))
        columns = [batch.column(name) for name in ("provider", "billed_tokens", "count_delta")]
        self.outliers = largest(
            Outlier(row_id, *values) for row_id, *values in zip(batch.ids, *columns, strict=True) if values[-1]
        )
        add_names(self.finish, Counter(finish or "unknown" for finish in batch.column("finish_reason")))
        add_to_providers(self.providers, batch, findings)

    def merge(self, later: "Stats") -> None:
        """Add the counts over the rows that come next."""
        self.rows += later.rows
        self.outliers = largest([*self.outliers, *later.outliers])
        add_names(self.finish, later.finish)
        self._lengths += later._lengths
        self._prompts += later._prompts
        numbers = np.array([self._pairs.setdefault(pair, len(self._pairs)) for pair in later._pairs], dtype=np.int32)
        self._pair_of += [numbers[pair_of] for pair_of in later._pair_of]
        for name, provider in later.providers.items():
            self.providers.setdefault(counted_name(self.providers, name), ProviderTotals()).merge(provider)

    def status_pairs(self) -> tuple[list[tuple[str, str | None]], NDArray[np.int64]]:
        """Return the pairs of status and reason that occur, and [rows] the index of each row's pair."""
        return list(self._pairs), np.concatenate([*self._pair_of, np.zeros(0, dtype=np.int64)])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[rows]: number of tokens of each completion."""
        return np.concatenate([*self._lengths, np.zeros(0, dtype=np.int64)])

    @property
    def prompt_lengths(self) -> NDArray[np.int64]:
        """[rows]: number of tokens of each prompt."""
        return np.concatenate([*self._prompts, np.zeros(0, dtype=np.int64)])

    def total(self, name: str) -> float:
        """Return the sum of a number over all providers."""
        return float(sum(getattr(provider, name) for provider in self.providers.values()))

    def counts(self, name: str) -> Counter[str]:
        """Return the sum of a counter over all providers."""
        return sum((getattr(provider, name) for provider in self.providers.values()), Counter())

    def latencies(self) -> dict[str, NDArray[np.float64]]:
        """Return the latencies that the response lines have, in milliseconds, by provider."""
        return {
            name: np.array(provider.latencies, dtype=np.float64) for name, provider in sorted(self.providers.items())
        }

    def deltas(self) -> NDArray[np.int64]:
        """Return billed minus rebuilt tokens of each row that has both numbers, by provider and then by row."""
        return np.concatenate(
            [
                *(np.array(provider.deltas, dtype=np.int64) for provider in self.providers.values()),
                np.zeros(0, dtype=np.int64),
            ]
        )


def add_to_providers(providers: dict[str, ProviderTotals], batch: Batch, findings: list[tuple[int, Finding]]) -> None:
    """Add each row of a batch to the totals of its provider."""
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(batch.column("provider")):
        rows_of.setdefault(name or "unknown", []).append(row)
    marks = {
        "errors": {row for row, finding in findings if finding.severity == "error"},
        "repeats": {row for row, finding in findings if finding.check in REPEATS},
        "truncated": set(np.flatnonzero(batch.cut).tolist()),
    }
    bad_calls = Counter(
        row for row, _position in {(row, finding.position) for row, finding in findings if finding.check in TOOL_FAULTS}
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
    """Add evidence, status, tokens, cost and latency of some rows to the totals of their provider."""
    evidence, status, deltas, billed = (
        batch.column(name) for name in ("evidence", "status", "count_delta", "billed_tokens")
    )
    lengths, prompts = batch.completion.lengths.tolist(), batch.prompt.lengths.tolist()
    provider.evidence.update(evidence[row] or "none" for row in rows)
    prompt_evidence = batch.column("prompt_evidence")
    provider.prompt_evidence.update(prompt_evidence[row] or "none" for row in rows)
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
