"""The verdict on a dataset: go or no-go, with every reason."""

from pipeline.core.sections import Section
from pipeline.stages.audit.config import AuditSection
from pipeline.stages.audit.engine import AuditTally


class AuditVerdict(Section):
    """The verdict, which the gate stage acts on."""

    verdict: str
    """go or no-go."""
    reasons: list[str]
    """Reasons for a no-go; empty for go."""


def judge(tally: AuditTally, section: AuditSection) -> AuditVerdict:
    """Compare the counts with the gate's thresholds and with the limit of each check."""
    reasons = []
    gate = section.gate
    held = tally.rows - tally.stats.counts("status")["reject"]
    if tally.rows_with_error > gate.max_error_rate * held:
        reasons.append(
            f"{tally.rows_with_error} of {held} rows with ids have an error ({tally.rows_with_error / held:.1%}); "
            f"gate.max_error_rate is {gate.max_error_rate:.1%}"
        )
    if tally.accepted < gate.min_accepted:
        reasons.append(f"{tally.accepted} rows are left for training; gate.min_accepted is {gate.min_accepted}")
    for name, counted in tally.checks.items():
        limit = section.check(name).max_share
        if limit is not None and counted.rows > limit * tally.rows:
            reasons.append(
                f"{name}: {counted.rows} of {tally.rows} rows ({counted.rows / tally.rows:.1%}); "
                f"audit.{name}.max_share is {limit:.1%}"
            )
    return AuditVerdict(verdict="no-go" if reasons else "go", reasons=reasons)
