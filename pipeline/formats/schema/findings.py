"""`build/<dataset>/audit/findings.parquet`: one row for each finding about a row of the dataset."""

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
    """A fault that a check found in a row."""

    id: str
    check: str
    severity: Severity
    """error: the row may not be trained on; warn: it may, and is counted; info: only counted."""
    message: str
    position: int | None
    """Index into completion_ids; None if the finding is about the whole row."""

    def to_row(self) -> dict[str, Any]:
        """Return the finding in the columns of SCHEMA."""
        return {name: getattr(self, name) for name in SCHEMA.names}
