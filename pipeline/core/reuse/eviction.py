"""Eviction from the reuse cache: the segments unused for longest go first."""

import contextlib
import time
from pathlib import Path

from pipeline.core.dvc_cache import cached_paths
from pipeline.core.reuse.index import Index
from pipeline.core.reuse.segment_files import own_bytes, segment_path

_LEFTOVER_SECONDS = 86400.0
"""Age at which a file that the index does not list counts as left behind by a killed run."""
_FORGOTTEN_SECONDS = 180 * 86400.0
"""Time without use after which an entry is dropped when the cache itself holds none of its bytes."""


def collect(index: Index, folder: Path, limit: int) -> int:
    """Drop segments, longest unused first, until the rest fits ``limit`` bytes; return the number of bytes freed.

    A file that DVC's cache holds too is removed at once; its entry stays, since the segment is found there.
    """
    sizes = [(segment, own_bytes(segment_path(folder, segment.name))) for segment in index.segments()]
    total, freed, dropped = sum(size for _, size in sizes), 0, []
    for segment, size in sizes:
        if (
            size
            and segment.md5
            and any(path.stat().st_size == segment.size for path in cached_paths(segment.md5, folder))
        ):
            segment_path(folder, segment.name).unlink(missing_ok=True)
            total, freed = total - size, freed + size
        elif size and total > limit:
            segment_path(folder, segment.name).unlink(missing_ok=True)
            dropped.append(segment.name)
            total, freed = total - size, freed + size
        elif not size and time.time() - segment.used > _FORGOTTEN_SECONDS:
            dropped.append(segment.name)
    if dropped:
        index.forget(dropped)
    _remove_unlisted(index, folder)
    return freed


def _remove_unlisted(index: Index, folder: Path) -> None:
    """Remove files without an entry that are too old to be another process's work in progress."""
    listed = {segment_path(folder, segment.name) for segment in index.segments()}
    for path in folder.glob("??/*"):
        with contextlib.suppress(OSError):
            if path not in listed and time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS:
                path.unlink()
