"""JSONL files: one JSON value per line."""

import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import orjson

from pipeline.core.errors import InputError
from pipeline.core.files.atomic import writing

READ_BUFFER = 1 << 18
"""Bytes per read call. A response's line is often longer than Python's default of 8 KiB; reading it in pieces takes
three times as long."""


def open_plain(path: Path) -> IO[bytes]:
    """Open an uncompressed file for reading."""
    return open(path, "rb", buffering=READ_BUFFER)


def read_lines(
    path: Path, opener: Callable[[Path], IO[bytes]] = open_plain
) -> Generator[tuple[int, bytes], None, None]:
    r"""Give the lines of a file with their numbers from 1, without the empty lines.

    Lines end at ``\n`` only: U+2028, NEL and VT belong to the text.

    Raises:
        InputError: the file is missing, cut short, or cannot be read.

    """
    try:
        with opener(path) as file:
            for number, line in enumerate(file, 1):
                if not line.isspace():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def read_jsonl(path: Path, opener: Callable[[Path], IO[bytes]] = open_plain) -> Iterator[tuple[int, Any]]:
    """Give the value of each line with the line's number from 1.

    Raises:
        InputError: the file is missing, or a line is not JSON; the message has the line's number.

    """
    for number, line in read_lines(path, opener):
        try:
            yield number, orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{path}:{number}: not JSON: {error}; found {line[:80]!r}") from error


def write_jsonl(path: Path, rows: Iterable[Any]) -> int:
    """Write one JSON value per line, in the order given; return the number of lines.

    A ``bytes`` row is written as it is, since it holds JSON already.
    """
    count = 0
    with writing(path) as file:
        for row in rows:
            file.write((row if isinstance(row, bytes) else orjson.dumps(row)) + b"\n")
            count += 1
    return count
