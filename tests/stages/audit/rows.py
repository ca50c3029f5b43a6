"""Clean rows with the real Kimi-K2.5 vocabulary, and tools to spoil them and to run one check."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.formats.schema.tokens import SCHEMA, Segment, TokenRow
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.audit.checks.catalog import BY_NAME
from pipeline.stages.audit.checks.check import Complaint, DatasetCheck
from pipeline.stages.audit.config import AuditSection
from pipeline.stages.audit.inputs.batch import Batch
from pipeline.stages.audit.inputs.context import Context
from tests.parquet import write_rows

END, THINK_OPEN, THINK_CLOSE = 163586, 163606, 163607
TOOLS_OPEN, TOOLS_CLOSE, CALL_OPEN, CALL_ARGS, CALL_CLOSE = 163595, 163596, 163597, 163598, 163599
PROMPT = [163587, 2482, 163601, 22931, END, 163588, 112064, 163601, THINK_OPEN]

Piece = str | int


def assemble(tokenizer: Tokenizer, pieces: Iterable[tuple[str, Piece]]) -> tuple[list[int], list[Segment]]:
    """Return ids and segments of named pieces; text is encoded as ordinary text, and an int is an id."""
    ids: list[int] = []
    segments = []
    for kind, piece in pieces:
        start = len(ids)
        ids += [piece] if isinstance(piece, int) else tokenizer.encode(piece)
        if len(ids) > start:
            segments.append(Segment(kind, start, len(ids)))
    return ids, segments


def call_pieces(name: str, args: Any, index: int) -> list[tuple[str, Piece]]:
    """Return the pieces of one tool call in Kimi's form."""
    text = args if isinstance(args, str) else json.dumps(args)
    return [
        ("call_open", CALL_OPEN),
        ("call_id", f"functions.{name}:{index}"),
        ("call_args_open", CALL_ARGS),
        ("call_args", text),
        ("call_close", CALL_CLOSE),
    ]


def answer(
    tokenizer: Tokenizer,
    row_id: str = "r0",
    *,
    reasoning: str = "Two plus three.",
    content: str = "Five.",
    calls: list[tuple[str, Any]] | None = None,
    **fields: Any,
) -> TokenRow:
    """Return one clean row, with any field replaced by ``fields``."""
    pieces: list[tuple[str, Piece]] = [("reasoning", reasoning), ("think_close", THINK_CLOSE), ("content", content)]
    if calls:
        pieces.append(("tools_open", TOOLS_OPEN))
        for index, (name, args) in enumerate(calls):
            pieces += call_pieces(name, args, index)
        pieces.append(("tools_close", TOOLS_CLOSE))
    ids, segments = assemble(tokenizer, [*pieces, ("end", END)])
    row = TokenRow(
        row_id, PROMPT, ids, "ids", 0, len(ids), "tool_calls" if calls else "stop", "alpha", segments, [], "accept"
    )
    return replace(row, **fields)


def clean_rows(tokenizer: Tokenizer, count: int) -> list[TokenRow]:
    """Return different rows, all without a fault."""
    return [
        answer(
            tokenizer,
            f"r{i}",
            reasoning=f"The user asks for the sum of {i} and {i * 7 % 101}. Add them: {i + i * 7 % 101}.",
            content=f"The sum of {i} and {i * 7 % 101} is {i + i * 7 % 101}.",
            prompt_ids=[*PROMPT[:3], *tokenizer.encode(f"What is {i} plus {i * 7 % 101}?"), *PROMPT[4:]],
        )
        for i in range(count)
    ]


def batch(
    context: Context, rows: list[TokenRow], prompts: list[Any] | None = None, responses: list[Any] | None = None
) -> Batch:
    """Return rows as a batch for the checks."""
    table = pa.RecordBatch.from_pylist([row.to_row() for row in rows], schema=SCHEMA)
    unknown: list[Any] = [None] * len(rows)
    return Batch(context, table, 0, prompts or unknown, responses or unknown)


def complaints(name: str, rows: Batch, **settings: Any) -> list[Complaint]:
    """Run one check with its default thresholds, changed by ``settings``."""
    section = AuditSection().check(name).model_copy(update=settings)
    check = BY_NAME[name]
    if isinstance(check, DatasetCheck):
        return list(check.run(check.facts(rows, section), rows.ids.__getitem__, section))
    return list(check.run(rows, section))


def write_tokens(path: Path, rows: Iterable[TokenRow]) -> Path:
    """Write a tokens.parquet."""
    write_rows(path, SCHEMA, (row.to_row() for row in rows))
    return path
