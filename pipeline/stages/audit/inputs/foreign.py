"""Token ids in Parquet or JSONL files of other tools, in the columns of schema/tokens.py."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, get_args

import pyarrow as pa

from pipeline.core.errors import InputError
from pipeline.core.files.compression import opener_of
from pipeline.core.files.contents import read_start
from pipeline.core.files.jsonl import read_jsonl
from pipeline.core.files.tables import read_columns, table_columns
from pipeline.formats.schema.tokens import SCHEMA, Evidence, Status
from pipeline.stages.audit.inputs.source import BATCH_ROWS

Opener = Callable[[Path], IO[bytes]]
Tables = Callable[[], Iterator[pa.RecordBatch]]

PROMPT = ("prompt_ids", "input_ids", "prompt_token_ids")
COMPLETION = ("completion_ids", "output_ids", "response_ids", "response_token_ids", "token_ids")
"""Names of the two columns of ids; the first one that exists counts. The prompt may be missing."""

OPTIONAL = frozenset({"prompt_evidence", "prompt_delta"})
"""Columns of a tokens.parquet that a file of an earlier version lacks; they are null then."""

TEXT = ("id", "finish_reason", "provider")
"""Further columns, which may be missing."""

_WORDS: dict[str, set[str | None]] = {"status": set(get_args(Status)), "evidence": {None, *get_args(Evidence)}}
"""Words that these columns of a tokens.parquet may hold; a check would take an unknown word for the best one."""

_IDS = pa.list_(pa.int32())
_MAGIC = b"PAR1"
_NEEDED = "needed are Parquet, or JSONL (plain, gzip or zstd) with `output_ids` and, if known, `input_ids`"


def open_tokens(path: Path) -> Tables:
    """Open a file as tables in the columns of schema/tokens.py, which can be read any number of times.

    Its first bytes, not its name, decide between Parquet and JSONL.

    Raises:
        InputError: the file is missing, damaged, or has no column of ids.

    """
    start = read_start(path, len(_MAGIC))
    if start != _MAGIC:
        opener = opener_of(path)
        try:
            first = next((value for _number, value in read_jsonl(path, opener)), None)
        except InputError as error:
            raise InputError(f"{error}; {_NEEDED}") from error
        if first is None:
            raise InputError(f"{path}: empty; {_NEEDED}")
        return lambda: _from_jsonl(path, opener)
    columns = table_columns(path)
    if set(SCHEMA.names) - OPTIONAL <= set(columns):
        return lambda: _from_our_columns(path, [name for name in SCHEMA.names if name in columns])
    if "status" in columns and "completion_ids" in columns:
        missing = [name for name in SCHEMA.names if name not in columns and name not in OPTIONAL]
        raise InputError(
            f"{path}: a tokens.parquet without {missing}; give all its columns, "
            "or leave `status` out, and every row counts as accepted"
        )
    prompt, completion = _choose(path, columns)
    return lambda: _from_parquet(path, columns, prompt, completion)


def _from_our_columns(path: Path, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a tokens.parquet, which another tool may have written again with wider types."""
    start = 0
    for batch in read_columns(path, names, BATCH_ROWS):
        columns = []
        for field in SCHEMA:
            if field.name not in names:
                columns.append(pa.nulls(batch.num_rows, field.type))
                continue
            column = batch.column(field.name)
            if field.type == _IDS:
                columns.append(_ids(path, field.name, column, start))
                continue
            if not field.nullable and column.null_count:
                raise InputError(
                    f"{path}: row {start + column.is_null().to_pylist().index(True)}: {field.name} is null"
                )
            if field.name in _WORDS and (
                odd := {None if word is None else str(word) for word in column.unique().to_pylist()}
                - _WORDS[field.name]
            ):
                found, known = min(map(str, odd)), sorted(map(str, _WORDS[field.name] - {None}))
                raise InputError(f"{path}: column {field.name} has {found!r}; needed is one of {known}")
            try:
                columns.append(column.cast(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise InputError(
                    f"{path}: column {field.name} is {column.type}; needed is {field.type} ({error})"
                ) from error
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        start += batch.num_rows


def _choose(path: Path, names: list[str]) -> tuple[str | None, str]:
    """Return the names of the columns of the prompt's ids, or None, and of the answer's ids."""
    completion = next((name for name in COMPLETION if name in names), None)
    if completion is None:
        raise InputError(
            f"{path}: has the columns {names}; needed is one of {list(COMPLETION)}, "
            f"and one of {list(PROMPT)} where the prompts are known"
        )
    return next((name for name in PROMPT if name in names), None), completion


def to_table(ids: list[str], prompts: Any, completions: Any, text: dict[str, list[str | None]]) -> pa.RecordBatch:
    """Return rows in the columns of schema/tokens.py; columns that other tools lack, such as `evidence`, are null."""
    size = len(ids)
    empty: dict[str, Any] = {"segments": [[]] * size, "notes": [[]] * size, "status": ["accept"] * size}
    given: dict[str, Any] = {"id": ids, "prompt_ids": prompts, "completion_ids": completions, **text}
    columns = [given.get(field.name, empty.get(field.name, [None] * size)) for field in SCHEMA]
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, type=field.type)
        for column, field in zip(columns, SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _from_parquet(path: Path, columns: list[str], prompt: str | None, completion: str) -> Iterator[pa.RecordBatch]:
    start = 0
    wanted = [name for name in (prompt, completion, *TEXT) if name in columns]
    for batch in read_columns(path, wanted, BATCH_ROWS):
        size = batch.num_rows
        prompts = (
            pa.array([[]] * size, type=_IDS) if prompt is None else _ids(path, prompt, batch.column(prompt), start)
        )
        text = {name: _texts(path, name, batch.column(name)) for name in TEXT if name in columns}
        names = [
            value if value is not None else f"row-{start + row}"
            for row, value in enumerate(text.pop("id", [None] * size))
        ]
        yield to_table(names, prompts, _ids(path, completion, batch.column(completion), start), text)
        start += size


def _ids(path: Path, name: str, column: Any, start: int) -> Any:
    """Convert a column to list<int32>."""
    if column.null_count:
        row = start + column.is_null().to_pylist().index(True)
        raise InputError(f"{path}: row {row}: {name} is null; every row needs a list of ids, which may be empty")
    if not _is_list_of_whole_numbers(column.type):
        raise InputError(f"{path}: column {name} is {column.type}; needed is a list of whole numbers")
    try:
        if not column.flatten().null_count:
            return column.cast(_IDS)
    except pa.ArrowInvalid:
        pass
    row, odd = next(
        (row, token)
        for row, ids in enumerate(column.to_pylist(), start)
        for token in ids
        if token is None or not _fits(token)
    )
    raise InputError(
        f"{path}: row {row}: {name} has {'null' if odd is None else odd} among its ids; "
        "needed are whole numbers that fit 32 bits"
    )


def _fits(token: int) -> bool:
    return -(1 << 31) <= token < 1 << 31


def _is_list_of_whole_numbers(kind: Any) -> bool:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_list(kind) for is_list in lists) and pa.types.is_integer(kind.value_type)


def _texts(path: Path, name: str, column: Any) -> list[str | None]:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_integer,
            pa.types.is_null,
        )
    ):
        raise InputError(f"{path}: column {name} is {column.type}; needed is text")
    return [None if value is None else str(value) for value in column.to_pylist()]


def _from_jsonl(path: Path, opener: Opener) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[str, list[int], list[int], dict[str, str | None]]] = []
    for number, value in read_jsonl(path, opener):
        rows.append(_row(path, number, value))
        if len(rows) == BATCH_ROWS:
            yield _gather(rows)
            rows = []
    if rows:
        yield _gather(rows)


def _gather(rows: list[tuple[str, list[int], list[int], dict[str, str | None]]]) -> pa.RecordBatch:
    ids, prompts, completions, texts = zip(*rows, strict=True)
    return to_table(
        list(ids),
        list(prompts),
        list(completions),
        {name: [text[name] for text in texts] for name in TEXT if name != "id"},
    )


def _row(path: Path, number: int, value: Any) -> tuple[str, list[int], list[int], dict[str, str | None]]:
    """Check one line of JSONL; return id, prompt ids, completion ids and further columns of its row."""
    where = f"{path}:{number}"
    if not isinstance(value, dict):
        raise InputError(f"{where}: needed is an object with `output_ids`; found {str(value)[:80]!r}")
    try:
        prompt, completion = _choose(path, list(value))
    except InputError as error:
        raise InputError(str(error).replace(f"{path}: has the columns", f"{where}: has the keys", 1)) from None
    lists = {name: value[name] if name else [] for name in (prompt, completion)}
    for name, ids in lists.items():
        if not isinstance(ids, list) or not all(type(token) is int and _fits(token) for token in ids):
            odd = (
                next((token for token in ids if type(token) is not int or not _fits(token)), None)
                if isinstance(ids, list)
                else ids
            )
            raise InputError(
                f"{where}: {name} must be a list of whole numbers that fit 32 bits; found {str(odd)[:60]!r}"
            )
    for name in TEXT:
        if not isinstance(value.get(name), str | int | None):
            raise InputError(f"{where}: {name} must be text; found {str(value[name])[:60]!r}")
    text = {name: None if value.get(name) is None else str(value[name]) for name in TEXT}
    return text["id"] if text["id"] is not None else f"row-{number - 1}", lists[prompt], lists[completion], text
