"""`build/<dataset>/tokens.parquet` and `accepted.parquet`: ids, and the evidence for them."""

from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from pipeline.core.files.tables import versioned

Evidence = Literal["ids", "logprobs", "count", "text"]
PromptEvidence = Literal["ids", "count", "text"]
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
        pa.field("prompt_evidence", pa.string()),
        pa.field("prompt_delta", pa.int32()),
    ],
    name="tokens",
    version=2,
)


@dataclass(frozen=True, slots=True)
class Segment:
    """A span of `completion_ids`: [start, end)."""

    kind: str
    """Text: reasoning, content, call_id, call_name, call_args. Markers: think_open, think_close, tools_open, call_open,
    call_args_open, call_close, tools_close, end; `special` for a special token out of place or without a role. Kimi's
    `call_id` holds the name (`functions.name:0`), and there is no `call_name`; Qwen3 and DeepSeek write it beside the
    arguments (docs/reconstruction.md)."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One prompt and its answer. A rejected row has a reason and no completion."""

    id: str
    prompt_ids: list[int]
    """Ids that the model read, generation prompt included."""
    completion_ids: list[int]
    """Ids that the model wrote, with the end token if it stopped by itself; empty if rejected."""
    evidence: Evidence | None
    """Evidence for the ids; None if rejected."""
    count_delta: int | None
    """`billed_tokens` minus the length of `completion_ids`; None if nothing was billed or rebuilt. It is -1 with
    evidence `count` and the note `terminator_not_billed` if the provider does not bill the end token. If several
    choices share a bill that is not their sum, it is the difference of the sums."""
    billed_tokens: int | None
    """Completion tokens billed, reasoning included; None for each of several choices whose sum is not their common
    bill."""
    finish_reason: str | None
    provider: str | None
    segments: list[Segment]
    """Spans of the completion, in order, without gaps."""
    notes: list[str]
    """Repairs and observations, as short codes with details."""
    status: Status
    """accept: the ids are known well enough to train on; flag: kept, and left out unless the config admits it; reject:
    the ids are unknown."""
    reason: str | None = None
    """Codes for a flag or a reject, joined by a comma and a space; None for accept."""
    prompt_evidence: PromptEvidence | None = None
    """Evidence for `prompt_ids`: `ids` if the engine returned them, `count` if the bill supports them, else `text`;
    None if they are not known."""
    prompt_delta: int | None = None
    """Billed prompt tokens minus the length of `prompt_ids`; None without a bill. Other than 0 with evidence `count` if
    the provider counts every prompt so."""

    def to_row(self) -> dict[str, Any]:
        """Return the row in the columns of SCHEMA."""
        row = {name: getattr(self, name) for name in SCHEMA.names}
        row["segments"] = [{"kind": s.kind, "start": s.start, "end": s.end} for s in self.segments]
        return row
