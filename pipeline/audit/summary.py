"""summary.json: the audit in numbers, for DVC metrics, the gate and the build's report."""

from typing import Any

from pipeline.audit.config import AuditSection
from pipeline.audit.engine import Tally
from pipeline.audit.verdict import Verdict


def summarize(tally: Tally, section: AuditSection, verdict: Verdict) -> dict[str, Any]:
    """Counts by check, status, evidence and reason; ``accepted`` plus the sum of ``left_out`` is ``rows``."""
    return {
        "version": 1,
        "rows": tally.rows,
        "status": dict(tally.status),
        "evidence": dict(tally.evidence),
        "rows_with_error": tally.rows_with_error,
        "accepted": tally.accepted,
        "accepted_tokens": tally.accepted_tokens,
        "left_out": dict(tally.left_out),
        "checks": {
            name: {"severity": section.check(name).severity, "rows": counted.rows, "findings": counted.findings} for name, counted in tally.checks.items()
        },
        "gate": verdict.model_dump(),
    }
