"""Compressed files of lines: gzip and zstd, recognized by their first bytes.

pyarrow reads zstd, so a stage that reads only its own JSONL does not import this module.
"""

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

import pyarrow as pa

from pipeline.core.files.contents import read_start
from pipeline.core.files.jsonl import open_plain


def opener_of(path: Path) -> Callable[[Path], IO[bytes]]:
    """Return the function that opens a file of lines; its first bytes decide between gzip, zstd and plain."""
    start = read_start(path, 4) if path.is_file() else b""
    return next((opener for magic, opener in _OPENERS.items() if start.startswith(magic)), open_plain)


def open_gzip(path: Path) -> IO[bytes]:
    """Open a gzip file for reading its content."""
    return cast(IO[bytes], gzip.open(path, "rb"))


def open_zstd(path: Path) -> IO[bytes]:
    """Open a zstd file for reading its content.

    Raises:
        OSError: the file is missing; reading raises it when the file is cut short or is not zstd.

    """
    return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))


_OPENERS = {b"\x1f\x8b": open_gzip, b"\x28\xb5\x2f\xfd": open_zstd}
"""First bytes of a compressed file, and its opener."""
