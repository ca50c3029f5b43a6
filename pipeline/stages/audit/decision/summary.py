"""summary.json: the audit in numbers, for DVC metrics, the gate, pull requests and the reports."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.audit.config import AuditSection
from pipeline.stages.audit.decision.stats import EXACT, Outlier, ProviderTotals
from pipeline.stages.audit.decision.verdict import AuditVerdict
from pipeline.stages.audit.engine import AuditTally

_LONGEST = 120
"""Characters of an id or a name."""


def rounded(value: float) -> float:
    """Six significant digits: enough for people, and the same on every machine."""
    return float(f"{value:.6g}")


def share(part: float, whole: float) -> float | None:
    """Part of a whole, or None where there is no whole."""
    return rounded(part / whole) if whole else None


def distribution(values: NDArray[np.int64] | NDArray[np.float64]) -> dict[str, float] | None:
    """Smallest, quartiles, 99th percentile, largest and mean, or None for no values."""
    if not len(values):
        return None
    found = np.percentile(values, [0, 25, 50, 75, 99, 100], method="nearest")
    return {
        name: rounded(float(value))
        for name, value in zip(("min", "p25", "p50", "p75", "p99", "max"), found, strict=True)
    } | {"mean": rounded(float(np.mean(values)))}


def billing(deltas: NDArray[np.int64], billed: int) -> dict[str, Any]:
    """Billed against rebuilt: how many rows have both, how many agree, and by how much the others differ."""
    size = np.abs(deltas)
    return {
        "rows": len(deltas),
        "equal": int((deltas == 0).sum()),
        "billed_tokens": billed,
        "mean_absolute": rounded(float(size.mean())) if len(size) else None,
        "max_absolute": int(size.max()) if len(size) else None,
        "relative": share(float(size.sum()), billed),
    }


def outlier_line(outlier: Outlier) -> dict[str, Any]:
    """One outlier; names that a provider or a file chose are cut."""
    return {
        "id": outlier.id[:_LONGEST],
        "provider": (outlier.provider or "unknown")[:_LONGEST],
        "billed": outlier.billed,
        "delta": outlier.delta,
    }


def scorecard(provider: ProviderTotals) -> dict[str, Any]:
    """What tells which provider to keep; None where nothing was there to measure."""
    held = provider.rows - provider.status["reject"]
    return {
        "rows": provider.rows,
        "evidence": dict(sorted(provider.evidence.items())),
        "status": dict(sorted(provider.status.items())),
        "exact_share": share(sum(provider.evidence[name] for name in EXACT), provider.rows),
        "known_share": share(sum(provider.evidence[name] for name in (*EXACT, "count")), provider.rows),
        "error_share": share(provider.errors, held),
        "truncated_share": share(provider.truncated, provider.rows),
        "repeat_share": share(provider.repeats, provider.rows),
        "tool_calls": provider.calls,
        "schema_accuracy": share(provider.calls - provider.bad_calls, provider.calls),
        "billing": billing(np.array(provider.deltas, dtype=np.int64), provider.billed_tokens),
        "prompt_tokens": provider.prompt_tokens,
        "completion_tokens": provider.completion_tokens,
        "cost_usd": rounded(provider.cost_usd) if provider.costed else None,
        "usd_per_million": rounded(provider.cost_usd / provider.costed_tokens * 1e6)
        if provider.costed_tokens
        else None,
        "latency_ms": distribution(np.array(provider.latencies, dtype=np.float64)),
        "models": dict(sorted(provider.models.items())),
    }


def summarize(
    tally: AuditTally, section: AuditSection, verdict: AuditVerdict, quantizations: Mapping[str, list[str]]
) -> dict[str, Any]:
    """Counts by check, status, evidence and reason; ``accepted`` plus the sum of ``left_out`` is ``rows``."""
    stats = tally.stats
    return {
        "version": 1,
        "rows": tally.rows,
        "status": dict(sorted(stats.counts("status").items())),
        "evidence": dict(sorted(stats.counts("evidence").items())),
        "finish": dict(sorted(stats.finish.items())),
        "rows_with_error": tally.rows_with_error,
        "accepted": tally.accepted,
        "accepted_tokens": int(stats.lengths[tally.keep].sum()),
        "left_out": dict(sorted(tally.left_out.items())),
        "tokens": {
            "prompt": int(stats.prompt_lengths.sum()),
            "completion": int(stats.lengths.sum()),
            "length": distribution(stats.lengths[stats.lengths > 0]),
        },
        "cost_usd": rounded(stats.total("cost_usd")) if stats.total("costed") else None,
        "billing": {
            **billing(stats.deltas(), int(stats.total("billed_tokens"))),
            "outliers": [outlier_line(outlier) for outlier in stats.outliers],
        },
        "providers": {
            name: {**scorecard(stats.providers[name]), "quantizations": sorted(quantizations.get(name, []))}
            for name in sorted(stats.providers)
        },
        "checks": {
            name: {"severity": section.check(name).severity, "rows": counted.rows, "findings": counted.findings}
            for name, counted in tally.checks.items()
        },
        "gate": verdict.model_dump(),
    }
