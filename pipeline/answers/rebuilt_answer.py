"""The result of rebuilding one answer."""

from typing import NamedTuple

from pipeline.answers.segmented_ids import SegmentedIds
from pipeline.formats.schema.tokens import Evidence


class RebuiltAnswer(NamedTuple):
    """The ids of an answer with their evidence, or the reasons why there are none."""

    segmented: SegmentedIds | None
    """None when the answer is rejected."""
    evidence: Evidence | None = None
    delta: int | None = None
    """Billed minus rebuilt tokens; None without a bill."""
    notes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    """Codes of why the row is flagged or rejected; empty for an accepted one."""
    plain_delta: int | None = None
    """Billed minus rebuilt tokens when the answer leaves no choice of reading; habits are learned from it."""
