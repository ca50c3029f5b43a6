"""`build/<dataset>/tokens.parquet` and `accepted.parquet`: what the model read and emitted, as ids, and how that is known."""

from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from pipeline.core.files.tables import versioned

Evidence = Literal["ids", "logprobs", "count", "text"]
Status = Literal["accept", "flag", "reject"]

SCHEMA = versioned(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("prompt_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("completion_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("evidence", pa.string()),
        pa.field("count_delta", pa.int32()),
        pa.field("billed_tokens", pa.int32()),
        pa.field("finish_reason", pa.string()),
        pa.field("provider", pa.string()),
        pa.field(
            "segments",
            pa.list_(pa.struct([("kind", pa.string()), ("start", pa.int32()), ("end", pa.int32())])),
            nullable=False,
        ),
        pa.field("notes", pa.list_(pa.string()), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
    ],
    name="tokens",
    version=1,
)


@dataclass(frozen=True, slots=True)
class Segment:
    """A span of `completion_ids`: [start, end)."""

    kind: str
    """Text: reasoning, content, call_id, call_name, call_args. Markers: think_open, think_close, tools_open, call_open, call_args_open,
    call_close, tools_close, end; `special` for a special token out of place, or one that plays no role. Kimi's `call_id` holds the name
    (`functions.name:0`), and there is no `call_name`; Qwen3 and DeepSeek write it beside the arguments (docs/reconstruction.md)."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One prompt and its answer. A rejected row has no completion, and says why."""

    id: str
    prompt_ids: list[int]
    """What the model read, generation prompt included."""
    completion_ids: list[int]
    """What the model emitted, end token included when it stopped by itself; empty when rejected."""
    evidence: Evidence | None
    """How the ids are known; None when rejected."""
    count_delta: int | None
    """`billed_tokens` minus the length of `completion_ids`; None when nothing was billed or rebuilt. -1 with evidence `count` and the note
    `terminator_not_billed` where the provider leaves the end token out of the bill. Where several choices share a bill that their sum does
    not meet: the difference of the sums."""
    billed_tokens: int | None
    """Completion tokens billed, reasoning included; None for each of several choices whose sum does not meet their common bill."""
    finish_reason: str | None
    provider: str | None
    segments: list[Segment]
    """Spans of the completion, in order, without gaps."""
    notes: list[str]
    """Repairs and observations, as short codes with details."""
    status: Status
    """accept: known well enough to train on; flag: kept, but out unless the config admits it; reject: no honest ids exist."""
    reason: str | None = None
    """Codes for a flag or a reject, joined by a comma and a space; None for accept."""

    def to_row(self) -> dict[str, Any]:
        """Give the row in the columns of SCHEMA."""
        row = {name: getattr(self, name) for name in SCHEMA.names}
        row["segments"] = [{"kind": s.kind, "start": s.start, "end": s.end} for s in self.segments]
        return row
