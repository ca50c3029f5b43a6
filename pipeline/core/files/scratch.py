"""Scratch folders: temporary files that are removed when a block ends."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pipeline.core.errors import DiskError


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give an empty folder that is removed when the block ends.

    Raises:
        DiskError: no folder for temporary files can be made, or its disk is full.

    """
    remedy = "or set TMPDIR to a folder that has room and that you may write to"
    try:
        temporary = tempfile.TemporaryDirectory(prefix="aerie-")
    except OSError as error:
        raise DiskError(
            f"cannot make a folder for temporary files: {error.strerror or error}; free some space, {remedy}"
        ) from error
    with temporary as folder:
        try:
            yield Path(folder)
        except DiskError as error:
            raise DiskError(f"{error}, {remedy}") if folder in str(error) else error from error
