"""The content of summary.json, for DVC, the gate, pull requests and the reports."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.audit.config import AuditSection
from pipeline.stages.audit.decision.stats import EXACT, Outlier, ProviderTotals
from pipeline.stages.audit.decision.verdict import AuditVerdict
from pipeline.stages.audit.engine import AuditTally

_LONGEST = 120
"""Most characters of an id or a name."""


def rounded(value: float) -> float:
    """Round to six significant digits, which are the same on every machine."""
    return float(f"{value:.6g}")


def share(part: float, whole: float) -> float | None:
    """Return the share of a part in a whole, or None where the whole is 0."""
    return rounded(part / whole) if whole else None


def distribution(values: NDArray[np.int64] | NDArray[np.float64]) -> dict[str, float] | None:
    """Return minimum, quartiles, 99th percentile, maximum and mean of values [n], or None where n is 0."""
    if not len(values):
        return None
    percentiles = np.percentile(values, [0, 25, 50, 75, 99, 100], method="nearest")
    return {
        name: rounded(float(value))
        for name, value in zip(("min", "p25", "p50", "p75", "p99", "max"), percentiles, strict=True)
    } | {"mean": rounded(float(np.mean(values)))}


def billing(deltas: NDArray[np.int64], billed: int) -> dict[str, Any]:
    """Compare billed with rebuilt tokens: rows with both numbers, rows that agree, and the size of the differences.

    ``deltas`` [rows] are billed minus rebuilt tokens; ``billed`` is the sum of billed tokens.
    """
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
    """Return one outlier as JSON. A provider or a file chose its names, so they are cut to a length."""
    return {
        "id": outlier.id[:_LONGEST],
        "provider": (outlier.provider or "unknown")[:_LONGEST],
        "billed": outlier.billed,
        "delta": outlier.delta,
    }


def scorecard(provider: ProviderTotals) -> dict[str, Any]:
    """Return the numbers by which to compare providers; None where there was nothing to measure."""
    held = provider.rows - provider.status["reject"]
    return {
        "rows": provider.rows,
        "evidence": dict(sorted(provider.evidence.items())),
        "prompt_evidence": dict(sorted(provider.prompt_evidence.items())),
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
    """Return the content of summary.json. ``accepted`` and the counts of ``left_out`` add up to ``rows``."""
    stats = tally.stats
    return {
        "version": 1,
        "rows": tally.rows,
        "status": dict(sorted(stats.counts("status").items())),
        "evidence": dict(sorted(stats.counts("evidence").items())),
        "prompt_evidence": dict(sorted(stats.counts("prompt_evidence").items())),
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
