"""`audit` and `datasets.<name>.expect`."""

from typing import Literal

from pydantic import Field

from pipeline.schema.findings import Severity
from pipeline.section import Section

Expectation = Literal["required", "optional", "forbidden"]


class ExpectSection(Section):
    """What every answer of a dataset must, may, or must not have."""

    reasoning: Expectation = "optional"
    tool_calls: Expectation = "optional"


class CheckSection(Section):
    """A check without thresholds."""

    severity: Severity | Literal["off"]


class RoundTripSection(CheckSection):
    """A check with a rate."""

    max_rate: float = Field(ge=0, le=1)


class GateSection(Section):
    """What the dataset as a whole must reach."""

    max_error_rate: float = Field(ge=0, le=1)
    """Share of rows with an error, at most."""
    min_accepted: int = Field(ge=0)
    """Rows left for training, at least."""
    admit: list[str] = Field(default_factory=list)
    """Reasons of flagged rows that may be trained on all the same."""


class AuditSection(Section):
    """One entry a check."""

    gate: GateSection
