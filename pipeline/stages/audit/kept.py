"""What rows alone told the checks, as rows of their own: kept for the next audit, and put together with what is new."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from pipeline.core.files import to_json
from pipeline.core.reuse.row_cache import Kept
from pipeline.core.reuse.rows import Found, KeptRows
from pipeline.formats.schema.findings import Finding
from pipeline.formats.schema.sketch import SCHEMA as SKETCH
from pipeline.stages.audit.config import AuditSection
from pipeline.stages.audit.decision.stats import Stats
from pipeline.stages.audit.engine import Part, RowFinding, active
from pipeline.stages.audit.inputs.batch import Batch, ragged
from pipeline.stages.audit.inputs.context import Context
from pipeline.stages.audit.inputs.endpoints import Endpoints
from pipeline.stages.audit.inputs.response_facts import ResponseFacts
from pipeline.stages.audit.inputs.source import Rows
from pipeline.stages.audit.page.samples import Samples

_FACTS = [field for field in SKETCH if field.name != "id"]
SCHEMA = pa.schema([pa.field("told", pa.binary()), *_FACTS])
"""`told` is JSON: findings, the response line's facts, number of tool calls."""
_SMALL = ("id", "evidence", "count_delta", "billed_tokens", "finish_reason", "provider", "notes", "status", "reason")


def decides(context: Context, section: AuditSection, heldout_digest: str | None) -> bytes:
    """Everything besides a row itself that decides what it tells; what is known of its provider is part of the row's key."""
    checks = {check.name: settings.model_dump(mode="json") for check, settings in active(section)}
    return to_json(
        [
            checks,
            context.expect.model_dump(mode="json"),
            context.allow,
            context.deny,
            context.record.model_dump(mode="json"),
            heldout_digest,
        ]
    )


def told_of(batch: Batch, part: Part) -> pa.RecordBatch:
    """What a batch that was examined told, a row each."""
    findings: list[list[Any]] = [[] for _ in range(batch.size)]
    for row, finding in part.found:
        findings[row].append([finding.check, finding.severity, finding.message, finding.position])
    told = [
        orjson.dumps([found, [getattr(answer, field.name) for field in fields(ResponseFacts)], calls])
        for found, answer, calls in zip(findings, batch.answers, batch.calls, strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(told, pa.binary()), *(part.sketch.column(field.name) for field in _FACTS)], schema=SCHEMA
    )


def part_of(batch: Batch, told: pa.RecordBatch) -> Part:
    """Give what examining the batch would give."""
    found: list[RowFinding] = []
    answers, calls = [], []
    for row, (row_id, line) in enumerate(zip(batch.ids, told.column("told").to_pylist(), strict=True)):
        findings, values, count = orjson.loads(line)
        found += [(row, Finding(row_id, *finding)) for finding in findings]
        answers.append(ResponseFacts(*values))
        calls.append(count)
    batch.answers, batch.calls = answers, calls
    stats, samples = Stats(), Samples()
    stats.add(batch, found)
    samples.add(batch, found)
    columns = [batch.table.column("id") if name == "id" else told.column(name) for name in SKETCH.names]
    return Part(found, stats, samples, pa.RecordBatch.from_arrays(columns, schema=SKETCH))


class Pending(NamedTuple):
    """A batch of the table, with what is kept of it."""

    rows: Rows
    found: Found


class KeptAudit:
    """What is kept of rows, by everything that they consist of."""

    def __init__(self, kept: Kept, context: Context) -> None:
        self._kept, self._context = kept, context
        self._rows = KeptRows(kept, SCHEMA)
        self._providers: dict[str | None, bytes] = {}

    def look(self, batches: Iterator[Rows]) -> Iterator[tuple[Pending, Rows | None]]:
        """Each batch with those of its rows that must be examined."""
        for rows in batches:
            found = self._rows.look([self._key(*parts) for parts in _contents(rows)])
            missing = found.missing
            yield (
                Pending(rows, found),
                rows if len(missing) == rows.table.num_rows else _some(rows, missing) if missing else None,
            )

    def part(self, pending: Pending, fresh: "Fresh | None") -> Part:
        """Put a batch together, and keep what is new."""
        rows, found = pending
        missing = found.missing
        if fresh is None:
            told = found.joined(None, [])
        else:
            ones = [1] * len(missing)
            self._rows.add([found.keys[number] for number in missing], fresh.told, ones)
            if len(missing) == rows.table.num_rows:
                return fresh.part
            told = found.joined(fresh.told, ones)
        return part_of(Batch(self._context, rows.table, rows.start), told)

    def close(self) -> None:
        """Keep what waits."""
        self._rows.flush()

    def _key(self, provider: str | None, *parts: bytes) -> bytes:
        if provider not in self._providers:
            self._providers[provider] = _known_of(provider, self._context.endpoints)
        return self._kept.key(self._providers[provider], *parts)


def _known_of(provider: str | None, endpoints: Endpoints) -> bytes:
    """What is known of a provider; of all, where only the response line may name it."""
    prices = {
        name: [price.model_dump(mode="json") for price in listed]
        for name, listed in endpoints.prices.items()
        if provider in (None, name)
    }
    return to_json([prices, {name: tags for name, tags in endpoints.tags.items() if provider in (None, name)}])


class Fresh(NamedTuple):
    """What was examined."""

    part: Part
    told: pa.RecordBatch


def _contents(rows: Rows) -> Iterator[tuple[Any, ...]]:
    """Provider of each row, and all that it consists of, as bytes."""
    table = rows.table
    small = zip(*(table.column(name).to_pylist() for name in _SMALL), strict=True)
    prompts, completions = ragged(table.column("prompt_ids")), ragged(table.column("completion_ids"))
    spans = table.column("segments")
    first, edges = spans.offsets[0].as_py(), spans.offsets.to_numpy()
    flat = spans.values.slice(first, edges[-1] - first)
    kinds = flat.field("kind").to_pylist()
    ends = np.stack(
        [flat.field(name).fill_null(-1).to_numpy(zero_copy_only=False) for name in ("start", "end")], axis=1
    ).astype("<i4")
    bounds = (edges - first).tolist()
    for row, values in enumerate(small):
        begin, end = bounds[row], bounds[row + 1]
        text = repr((values, kinds[begin:end])).encode("utf-8", "surrogatepass")
        lines = [b"-" if line is None else b"+" + line for line in (rows.prompts[row], rows.responses[row])]
        yield (
            values[_SMALL.index("provider")],
            text,
            ends[begin:end].tobytes(),
            prompts[row].tobytes(),
            completions[row].tobytes(),
            *lines,
        )


def _some(rows: Rows, numbers: Sequence[int]) -> Rows:
    """Give some rows of a batch."""
    return rows._replace(
        table=rows.table.take(pa.array(numbers)),
        prompts=[rows.prompts[n] for n in numbers],
        responses=[rows.responses[n] for n in numbers],
    )
