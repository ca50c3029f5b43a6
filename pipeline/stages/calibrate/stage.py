"""`calibrate`: count the rows that are exactly what the model emitted, where the responses hold the true ids."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from pipeline.core.files.json_file import read_model, write_json
from pipeline.core.files.jsonl import read_lines
from pipeline.core.sections import Section
from pipeline.formats.schema.target import TargetRecord
from pipeline.stages.calibrate.scores import Scores

_TRUTH_KEY = b'"x_truth"'
"""Part of each line that holds true ids; any other line need not be parsed."""


class Config(Section):
    """The stage reads no key of the config."""


def run(config: Config, *, responses: Path, tokens: Path, record: Path, report: Path) -> None:
    """Compare tokens.parquet with the true ids that the embedded server leaves in its bodies.

    Raises:
        AerieError: a file is missing or damaged.

    """
    del config
    truths = _truths(responses)
    first = next(truths, None)
    scores = Scores() if first is None else _scored(chain([first], truths), tokens, record)
    write_json(report, {"version": 1, "truth": "x_truth" if scores.rows else "none", **scores.document()})


def _scored(truths: Iterator[dict[str, list[int]]], tokens: Path, record: Path) -> Scores:
    """Score each row whose true ids are known.

    The imports are here because most builds do not need them: answers of real servers hold no true ids, so nothing is
    compared.
    """
    from pipeline.core.files.tables import read_rows
    from pipeline.formats.schema.tokens import SCHEMA
    from pipeline.model.special_tokens import open_tokenizer
    from pipeline.stages.calibrate.comparison import IdComparison, score_row

    target = read_model(record, TargetRecord)
    comparison, scores = IdComparison(target, open_tokenizer(target)), Scores()
    truth: dict[str, list[int]] = {}
    for row in read_rows(tokens, SCHEMA):
        while row["id"] not in truth and (more := next(truths, None)) is not None:
            truth.update(more)
        if (ids := truth.pop(row["id"], None)) is not None:
            score_row(comparison, scores, row, ids)
    return scores


def _truths(responses: Path) -> Iterator[dict[str, list[int]]]:
    """Yield the true ids of each line that holds some: row id to ids, one for each choice."""
    for _, line in read_lines(responses):
        if _TRUTH_KEY not in line:
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(row, dict) and (truth := truth_of(row)):
            yield truth


def truth_of(row: dict[str, Any]) -> dict[str, list[int]]:
    """Return the true ids in a line of responses.jsonl, by row id; `reconstruct` never reads them."""
    body = row.get("response")
    extra = body.get("x_truth") if isinstance(body, dict) else None
    ids = extra.get("output_ids") if isinstance(extra, dict) else None
    if not isinstance(ids, list) or not ids:
        return {}
    lists = ids if isinstance(ids[0], list) else [ids]
    return {str(row["id"]) + (f"#{n}" if n else ""): each for n, each in enumerate(lists)}
