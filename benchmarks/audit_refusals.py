"""Precision and recall of the check `refusal` on the labelled answers in tests/data/refusals_labelled.jsonl.

    python -m benchmarks audit_refusals

The file was written by hand together with the patterns, so the figures say that both agree, and are an upper bound for
answers of real models.
"""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pipeline.core.files.jsonl import read_jsonl
from pipeline.stages.audit.features.refusals import is_refusal, plain_opening

LABELLED = Path(__file__).parents[1] / "tests" / "data" / "refusals_labelled.jsonl"


def measure() -> dict[str, Any]:
    """Return counts, precision, recall, and the texts that are judged wrongly."""
    lines = [line for _number, line in read_jsonl(LABELLED)]
    begun = time.perf_counter()
    judged = [is_refusal(plain_opening(line["text"])) for line in lines]
    seconds = time.perf_counter() - begun
    counts = Counter((line["refusal"], found) for line, found in zip(lines, judged, strict=True))
    hits, missed, false_alarms = counts[True, True], counts[True, False], counts[False, True]
    return {
        "refusals": hits + missed,
        "others": false_alarms + counts[False, False],
        "languages": len({line["language"] for line in lines}),
        "precision": hits / (hits + false_alarms),
        "recall": hits / (hits + missed),
        "microseconds_per_answer": round(seconds / len(lines) * 1e6, 1),
        "wrong": [line["text"] for line, found in zip(lines, judged, strict=True) if found != line["refusal"]],
    }


def main() -> None:
    """Print the figures as JSON."""
    print(json.dumps(measure(), indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
