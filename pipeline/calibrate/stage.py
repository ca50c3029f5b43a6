"""`calibrate`: how many rows are exactly what the model emitted, where the responses hold the truth; says so where they do not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from pipeline.answers.formats import thinking_after
from pipeline.artifacts import read_lines, read_model, write_json
from pipeline.calibrate.compare import Judge, Scores
from pipeline.schema.target import TargetRecord
from pipeline.schema.tokens import SCHEMA
from pipeline.section import Section
from pipeline.specials import open_tokenizer
from pipeline.tables import read_rows


class Config(Section):
    """The stage takes nothing from the config."""


def run(config: Config, *, responses: Path, tokens: Path, record: Path, report: Path) -> None:
    """Compare tokens.parquet with the true ids that the embedded server leaves in its bodies.

    Raises:
        AerieError: a file is missing or damaged.

    """
    del config
    target = read_model(record, TargetRecord)
    judge = Judge(target, open_tokenizer(target))
    scores = Scores()
    truths = _truths(responses)
    truth: dict[str, list[int]] = {}
    for row in read_rows(tokens, SCHEMA):
        while row["id"] not in truth and (more := next(truths, None)) is not None:
            truth.update(more)
        if (ids := truth.pop(row["id"], None)) is not None:
            judged(judge, scores, row, ids, target)
    write_json(report, {"version": 1, "truth": "x_truth" if scores.rows else "none", **scores.document()})


def judged(judge: Judge, scores: Scores, row: dict[str, Any], truth: list[int], record: TargetRecord, dataset: str | None = None) -> None:
    """Score one row of tokens.parquet against its true ids."""
    verdict = judge.verdict(row["completion_ids"], truth)
    canonical = (
        "canonical" if judge.canonical(truth, thinking_after(row["prompt_ids"], record) if row["prompt_ids"] else judge.thinking) else "sampled otherwise"
    )
    evidence = row["evidence"] or "none"
    groups = {
        "evidence": evidence,
        "provider": row["provider"] or "unknown",
        "status": row["status"],
        "segmentation": canonical,
        "evidence_and_segmentation": f"{evidence}, {canonical}",
    }
    if dataset is not None:
        groups["dataset"] = dataset
    example = None
    if verdict in ("segmentation", "text"):
        example = {
            "id": row["id"],
            "verdict": verdict,
            **{k: groups[k] for k in ("evidence", "provider")},
            **judge.first_difference(row["completion_ids"], truth),
        }
    scores.take(groups, verdict, example)


def _truths(responses: Path) -> Iterator[dict[str, list[int]]]:
    """True ids of each line that holds some: row id to ids, one for each choice."""
    for _, line in read_lines(responses):
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(row, dict) and (found := truth_of(row)):
            yield found


def truth_of(row: dict[str, Any]) -> dict[str, list[int]]:
    """True ids in a line of responses.jsonl; the stage that rebuilds never looks at them."""
    body = row.get("response")
    extra = body.get("x_truth") if isinstance(body, dict) else None
    ids = extra.get("output_ids") if isinstance(extra, dict) else None
    if not isinstance(ids, list) or not ids:
        return {}
    lists = ids if isinstance(ids[0], list) else [ids]
    return {str(row["id"]) + (f"#{n}" if n else ""): each for n, each in enumerate(lists)}
