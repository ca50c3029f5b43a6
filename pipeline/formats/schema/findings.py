"""`build/<dataset>/audit/findings.parquet`: one line for each complaint of a check about a row."""

from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from pipeline.core.files.tables import versioned

Severity = Literal["error", "warn", "info"]

SCHEMA = versioned(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("check", pa.string(), nullable=False),
        pa.field("severity", pa.string(), nullable=False),
        pa.field("message", pa.string(), nullable=False),
        pa.field("position", pa.int32()),
    ],
    name="findings",
    version=1,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has against a row."""

    id: str
    check: str
    severity: Severity
    """error: the row may not be trained on; warn: it may, and is counted; info: only counted."""
    message: str
    position: int | None
    """Index into completion_ids, or None when the finding is about the whole row."""

    def to_row(self) -> dict[str, Any]:
        """Give the finding in the columns of SCHEMA."""
        return {name: getattr(self, name) for name in SCHEMA.names}
