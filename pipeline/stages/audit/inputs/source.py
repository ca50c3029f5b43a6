"""Where an audit's rows come from: the tokens table, joined with prompts and responses by id, a batch at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core.errors import InputError
from pipeline.core.files.tables import read_batches
from pipeline.formats.prompt_responses import LinesById, line_name, required_id
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.stages.audit.inputs.batch import Batch
from pipeline.stages.audit.inputs.context import Context

BATCH_ROWS = 256
BATCH_TOKENS = 1 << 20
"""Most rows of a batch, and most tokens unless one row has more: memory does not depend on the file."""


class Rows(NamedTuple):
    """Some rows before anything is worked out: small enough to be handed to another process."""

    table: pa.RecordBatch
    start: int
    """Number of the first row in the file."""
    prompts: list[bytes | None]
    """Line of prompts.jsonl for each row."""
    responses: list[bytes | None]
    """Line of responses.jsonl for each row."""

    files: tuple[Path | None, Path | None]
    """Where those lines stand."""

    def to_batch(self, context: Context) -> Batch:
        """Give the rows as checks see them.

        Raises:
            InputError: a line is not JSON.

        """
        prompts, responses = (
            list(map(self._value, lines, repeat(path)))
            for lines, path in zip((self.prompts, self.responses), self.files, strict=True)
        )
        return Batch(context, self.table, self.start, prompts, responses)

    @staticmethod
    def _value(line: bytes | None, path: Path | None) -> Any:
        if line is None:
            return None
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{path}: a line is not JSON: {error}; found {line[:80]!r}") from error


@dataclass(frozen=True)
class Source:
    """Rows that can be read again from the start, as often as needed."""

    tables: Callable[[], Iterator[pa.RecordBatch]]
    """Batches in the columns of schema/tokens.py."""
    prompts: Path | None = None
    responses: Path | None = None
    name: str = "the file"
    """As messages call it."""
    anyone: bool = False
    """Whether anyone may have written the responses, so that a line may be no JSON; a build's own are whole."""

    def small_tables(self) -> Iterator[pa.RecordBatch]:
        """Batches cut to size."""
        for table in self.tables():
            yield from cut(table)

    def rows(self) -> Iterator[Rows]:
        """Rows with the prompt and the response of each, where files for them are given."""
        prompts = LinesById(self.prompts, required_id(self.prompts)) if self.prompts else None
        line_id = line_name if self.anyone or self.responses is None else required_id(self.responses)
        responses = LinesById(self.responses, line_id) if self.responses else None
        start = 0
        for table in self.small_tables():
            ids = table.column("id").to_pylist()
            none: list[bytes | None] = [None] * len(ids)
            asked, answered = ([lines.find(i) for i in ids] if lines else none for lines in (prompts, responses))
            yield Rows(table, start, asked, answered, (self.prompts, self.responses))
            start += len(ids)

    def batches(self, context: Context) -> Iterator[Batch]:
        """Rows as checks see them."""
        return (rows.to_batch(context) for rows in self.rows())


def cut(table: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Halve a batch until each part is small enough."""
    size = table.num_rows
    tokens = sum(
        pc.sum(pc.list_value_length(table.column(name))).as_py() or 0 for name in ("prompt_ids", "completion_ids")
    )
    if size <= 1 or (size <= BATCH_ROWS and tokens <= BATCH_TOKENS):
        yield table
    else:
        yield from cut(table.slice(0, size // 2))
        yield from cut(table.slice(size // 2))


def parquet(path: Path) -> Callable[[], Iterator[pa.RecordBatch]]:
    """Batches of a tokens.parquet."""
    return lambda: read_batches(path, SCHEMA, BATCH_ROWS)
