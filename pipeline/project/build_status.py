"""The state of a build from small files kept in git: datasets, verdicts, providers' speed, the drafter."""

from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.files.json_file import read_json
from pipeline.formats.build_folder import BUILD

EVIDENCE = ("ids", "logprobs", "count", "text")


class ProviderSpeed(NamedTuple):
    """How fast one provider answered the prompts of one dataset."""

    dataset: str
    provider: str
    answers: int
    median_seconds: float
    p95_seconds: float
    tokens_per_second: float | None
    """Of all providers of the dataset together; given with the first one only."""


def read_document(name: str) -> Any:
    """Return a JSON document under build/; an empty one if its stage has not run."""
    path = Path(BUILD / name)
    return read_json(path) if path.exists() else {}


def dataset_cells(name: str) -> list[str]:
    """Return a dataset's name, rows, accepted rows, exact rows by evidence, and verdict; a dash for a missing value."""
    audit, calibration = read_document(f"{name}/audit/summary.json"), read_document(f"{name}/calibration.json")
    by_evidence = calibration.get("by_evidence", {})
    counts = {kind: by_evidence[kind] for kind in EVIDENCE if by_evidence.get(kind)}
    exact = " ".join(f"{kind} {count['exact']}/{count['rows']}" for kind, count in counts.items())
    verdict = audit.get("gate", {}).get("verdict", "-")
    return [name, str(audit.get("rows", "-")), str(audit.get("accepted", "-")), exact or "-", verdict]


def provider_speeds(datasets: list[str]) -> list[ProviderSpeed]:
    """Return the speed of each provider of each dataset that has timings."""
    speeds = []
    for name in datasets:
        timings = read_document(f"{name}/timings.json")
        rate = timings.get("completion_tokens_per_second")
        for index, (provider, timing) in enumerate(timings.get("by_provider", {}).items()):
            seconds = timing["p50_seconds"], timing["p95_seconds"]
            speeds.append(ProviderSpeed(name, provider, timing["answers"], *seconds, None if index else rate))
    return speeds


def drafter_line() -> str:
    """Return the result of the drafter's evaluation in one line."""
    result = read_document("drafter/eval.json")
    if not result:
        return "drafter: not evaluated yet; run `dvc repro`"
    return (
        f"drafter: acceptance length {result['acceptance_length']:.2f} with {result['draft_tokens']} draft tokens "
        f"on {result['prompts']} held-out prompts"
    )
