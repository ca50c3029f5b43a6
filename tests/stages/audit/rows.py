"""Rows with the real Kimi-K2.5 vocabulary: clean answers of the default datasets' kinds, and ways to spoil them."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.core.tables import write_rows
from pipeline.formats.schema.tokens import SCHEMA, Segment, TokenRow
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.audit.checks.catalog import CHECKS, Across, Complaint
from pipeline.stages.audit.config import AuditSection
from pipeline.stages.audit.inputs.batch import Batch
from pipeline.stages.audit.inputs.context import Context

END, THINK_OPEN, THINK_CLOSE = 163586, 163606, 163607
TOOLS_OPEN, TOOLS_CLOSE, CALL_OPEN, CALL_ARGS, CALL_CLOSE = 163595, 163596, 163597, 163598, 163599
PROMPT = [163587, 2482, 163601, 22931, END, 163588, 112064, 163601, THINK_OPEN]

Piece = str | int


def assemble(tokenizer: Tokenizer, pieces: Iterable[tuple[str, Piece]]) -> tuple[list[int], list[Segment]]:
    """Ids and segments of named pieces: text is encoded as ordinary text, an int is that id."""
    ids: list[int] = []
    segments = []
    for kind, piece in pieces:
        start = len(ids)
        ids += [piece] if isinstance(piece, int) else tokenizer.encode(piece)
        if len(ids) > start:
            segments.append(Segment(kind, start, len(ids)))
    return ids, segments


def call_pieces(name: str, args: Any, index: int) -> list[tuple[str, Piece]]:
    """Pieces of one tool call in Kimi's form."""
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
    """One clean row; ``fields`` replaces any field of it."""
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
    """Varied rows without a fault, all different."""
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
    """Rows as the checks see them."""
    return Batch(
        context, pa.RecordBatch.from_pylist([row.to_row() for row in rows], schema=SCHEMA), 0, prompts, responses
    )


def complaints(name: str, rows: Batch, **settings: Any) -> list[Complaint]:
    """What one check says, with its default thresholds but for ``settings``."""
    section = AuditSection().check(name).model_copy(update=settings)
    check = CHECKS[name]
    if isinstance(check, Across):
        return list(check.run(check.facts(rows, section), rows.ids.__getitem__, section))
    return list(check.run(rows, section))


def write_tokens(path: Path, rows: Iterable[TokenRow]) -> Path:
    """Write a tokens.parquet."""
    write_rows(path, SCHEMA, (row.to_row() for row in rows))
    return path
