"""Segment files of the reuse cache, each named by the SHA-256 of its bytes."""

import os
from pathlib import Path

from pipeline.core.files.atomic import temporary_path, write_bytes
from pipeline.core.files.contents import read_bytes

FOLDER = "rows"
"""Folder of the cache in the clone's shared folder."""


def segment_path(folder: Path, name: bytes) -> Path:
    """Return the path of a segment in the cache."""
    text = name.hex()
    return folder / text[:2] / text[2:]


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system does not allow a link.

    Raises:
        DiskError: the disk is full.

    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(target)
    try:
        temporary.unlink(missing_ok=True)
        os.link(source, temporary)
        temporary.replace(target)
    except OSError:
        write_bytes(target, read_bytes(source))


def own_bytes(path: Path) -> int:
    """Return the bytes that only this name holds: 0 for a file with a second name elsewhere, or that is gone."""
    try:
        stat = path.stat()
    except OSError:
        return 0
    return stat.st_size if stat.st_nlink == 1 else 0
