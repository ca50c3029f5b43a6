"""What is known of one answer in the end."""

from typing import NamedTuple

from pipeline.answers.assemble import Built
from pipeline.formats.schema.tokens import Evidence


class Outcome(NamedTuple):
    """Ids with their evidence, or why there are none."""

    built: Built | None
    """Ids and spans; None when rejected."""
    evidence: Evidence | None = None
    delta: int | None = None
    """Billed minus rebuilt."""
    notes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    """Why the row is flagged or rejected; none for an accepted one."""
    plain_delta: int | None = None
    """Billed minus rebuilt when the answer leaves no choice of reading: what habits are learned from."""
