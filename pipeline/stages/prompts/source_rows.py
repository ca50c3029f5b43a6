"""Rows of a dataset's source and their places: JSONL (plain, gzip, zstd), Parquet, or a hub dataset."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import orjson

from pipeline.core.errors import InputError
from pipeline.core.files.jsonl import open_plain, read_lines
from pipeline.stages.prompts.config import PromptsSection
from pipeline.stages.prompts.exact_json import exact_json

Located = tuple[str, Any]
"""The place of a row (`file:line`), and the row."""

_BOM = b"\xef\xbb\xbf"
"""The byte order mark that some editors put before a text in UTF-8."""

_JSONL = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson")


def open_source(section: PromptsSection) -> Iterator[Located]:
    """Yield the rows of the source.

    Raises:
        InputError: the format is unknown, or the file is missing, damaged or malformed.

    """
    if section.path.startswith("hf://"):
        return _hub(section)
    path = Path(section.path)
    chosen = section.format
    if chosen == "auto":
        chosen = "parquet" if path.name.endswith(".parquet") else "jsonl" if path.name.endswith(_JSONL) else "auto"
    if chosen == "auto":
        raise InputError(
            f"{path}: the name does not tell the format; use one of {', '.join(_JSONL)} and .parquet, or set "
            "prompts.format"
        )
    return _parquet(path) if chosen == "parquet" else _lines(path)


def _lines(path: Path) -> Iterator[Located]:
    for number, line in read_lines(path, _opener(path)):
        try:
            yield f"{path}:{number}", exact_json(line.removeprefix(_BOM) if number == 1 else line)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{path}:{number}: not JSON: {error}; found {line[:80]!r}") from error
        except InputError as error:
            raise InputError(f"{path}:{number}: {error}") from None


def _opener(path: Path) -> Callable[[Path], IO[bytes]]:
    if path.suffix not in (".gz", ".zst"):
        return open_plain
    from pipeline.core.files.compression import (
        opener_of,  # pyarrow is slow to import, and most datasets are plain JSONL
    )

    return opener_of(path)


def _parquet(path: Path) -> Iterator[Located]:
    from pipeline.core.files.tables import read_any

    for number, row in enumerate(read_any(path), 1):
        yield f"{path}: row {number}", {name: _without_nulls(value) for name, value in row.items()}


def _without_nulls(value: Any) -> Any:
    """Leave out the nulls that a table fills in, except a message's `content`, which may be null.

    In a table every message and tool has every field that any of them has.
    """
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None or name == "content"}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _hub(section: PromptsSection) -> Iterator[Located]:
    try:
        import datasets  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise InputError(
            f"{section.path}: reading a hub dataset needs the package `datasets`: run `pip install 'aerie[hub]'`, or "
            "save the prompts as JSONL"
        ) from None
    name = section.path.removeprefix("hf://")
    try:  # it is a stream: each row is fetched, and can fail, on its own
        rows = datasets.load_dataset(
            name, section.subset, split=section.split, revision=section.revision, streaming=True
        )
        for number, row in enumerate(rows, 1):
            yield (
                f"{section.path} {section.split} row {number}",
                {name: _without_nulls(value) for name, value in row.items()},
            )
    except (OSError, ValueError, RuntimeError, KeyError, datasets.exceptions.DatasetsError) as error:
        raise InputError(f"{section.path}: {type(error).__name__}: {error}") from error
