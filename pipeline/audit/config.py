"""`datasets.<name>.audit` and `datasets.<name>.expect`: one field a check, so that an unknown check is a mistake with a name."""

from typing import Any, Literal

from pydantic import Field, model_validator

from pipeline.section import Section

Expectation = Literal["required", "optional", "forbidden"]
Level = Literal["error", "warn", "info", "off"]


class ExpectSection(Section):
    """What every answer of a dataset must, may, or must not have."""

    reasoning: Expectation = "optional"
    tool_calls: Expectation = "optional"


class CheckSection(Section):
    """What every check has."""

    severity: Level
    """error: the row is left out of training; warn and info: it stays, and is counted; off: the check does not run."""
    max_share: float | None = Field(None, ge=0, le=1)
    """Share of rows with this finding above which the dataset fails; null sets no limit."""


class RoundTripSection(CheckSection):
    """Thresholds of `round_trip`."""

    max_rate: float = Field(0.05, ge=0, le=1)
    """Share of a row's tokens that may differ after decoding and encoding again."""


class GateSection(Section):
    """What the dataset as a whole must reach."""

    max_error_rate: float = Field(0.2, ge=0, le=1)
    """Share of rows with an error among those that hold ids, at most."""
    min_accepted: int = Field(1, ge=0)
    """Rows left for training, at least."""
    admit: list[str] = Field(default_factory=list)
    """Reasons of flagged rows that may be trained on all the same; a code admits that code with any details after a colon."""


def _error() -> CheckSection:
    return CheckSection(severity="error")


class AuditSection(Section):
    """The gate, and one entry a check."""

    gate: GateSection = GateSection()
    ends_with_end_token: CheckSection = Field(default_factory=_error)
    one_think_close: CheckSection = Field(default_factory=_error)
    think_close_position: CheckSection = Field(default_factory=_error)
    one_end_token: CheckSection = Field(default_factory=_error)
    no_think_open: CheckSection = Field(default_factory=_error)
    round_trip: RoundTripSection = RoundTripSection(severity="error")
    reasoning_not_empty: CheckSection = Field(default_factory=_error)

    @model_validator(mode="before")
    @classmethod
    def _known_checks(cls, values: Any) -> Any:
        """Refuse a check that does not exist, and name those that do."""
        if isinstance(values, dict) and (unknown := sorted(set(map(str, values)) - set(cls.model_fields))):
            known = sorted(set(cls.model_fields) - {"gate"})
            raise ValueError(f"unknown checks {unknown}; known are {known}")
        return values

    def check(self, name: str) -> CheckSection:
        """Settings of one check."""
        section: CheckSection = getattr(self, name)
        return section
