"""`python -m pipeline reuse`: manage the cache of hidden states for later builds: stats, verify, gc, clear."""

import argparse
import contextlib
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.core.dvc_cache import cached_paths
from pipeline.core.errors import ArtifactError, InputError
from pipeline.core.files.digests import sha256_file
from pipeline.core.home import shared_folder
from pipeline.core.reuse.eviction import collect
from pipeline.core.reuse.index import FILE, Index
from pipeline.core.reuse.limit import VARIABLE, most_bytes
from pipeline.core.reuse.segment_files import FOLDER, own_bytes, segment_path


def main(argv: list[str]) -> int:
    """Run one of the commands.

    Raises:
        InputError: this is not a git repository.
        ArtifactError: the index is damaged.

    """
    parser = argparse.ArgumentParser(
        prog="python -m pipeline reuse",
        description=f"{__doc__} The cache lies beside the ledger; the variable {VARIABLE} limits it or turns it off.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("stats", help="batches, files and bytes, by stage")
    commands.add_parser("verify", help="check every file against its digest and drop the damaged ones")
    commands.add_parser("gc", help="drop the files unused for longest until the rest fits the limit")
    commands.add_parser("clear", help="drop everything: the next build computes every batch")
    command = parser.parse_args(argv).command
    home = shared_folder()
    if home is None:
        raise InputError("this is not a git repository, so nothing is kept")
    folder = home / FOLDER
    if not (folder / FILE).is_file():
        print(f"{folder}: nothing is kept")
        return 0
    if command == "clear":
        size = sum(own_bytes(path) for path in folder.glob("??/*"))
        shutil.rmtree(folder)
        print(f"{folder}: removed, {size / 2**20:.1f} MiB")
        return 0
    try:
        with contextlib.closing(Index(folder)) as index:
            return _run(command, index, folder)
    except sqlite3.Error as error:
        raise ArtifactError(f"{folder / FILE}: {error}; run `python -m pipeline reuse clear`") from error


def _run(command: str, index: Index, folder: Path) -> int:
    if command == "stats":
        Console().print(_stats(index, folder))
    elif command == "gc":
        print(f"{collect(index, folder, most_bytes()) / 2**20:.1f} MiB freed")
    else:
        damaged = [
            segment.name
            for segment in index.segments()
            if _is_damaged(segment_path(folder, segment.name), segment.name)
        ]
        for name in damaged:
            segment_path(folder, name).unlink()
        index.forget(damaged)
        print(f"{len(damaged)} damaged files dropped")
    return 0


def _is_damaged(path: Path, name: bytes) -> bool:
    return path.is_file() and sha256_file(path) != name.hex()


def _stats(index: Index, folder: Path) -> Table:
    pieces, segments = index.pieces(), index.segments()
    files: Counter[str] = Counter(segment.kind for segment in segments)
    sizes: Counter[str] = Counter()
    elsewhere: Counter[str] = Counter()
    for segment in segments:
        own = own_bytes(segment_path(folder, segment.name))
        sizes[segment.kind] += own
        elsewhere[segment.kind] += (
            segment.size
            if not own
            and (segment_path(folder, segment.name).exists() or (segment.md5 and cached_paths(segment.md5, folder)))
            else 0
        )
    table = Table(
        title=f"{folder}: {sizes.total() / 2**20:.1f} MiB of at most {most_bytes() / 2**20:.0f}", title_justify="left"
    )
    for column in ("stage", "batches", "files", "MiB here", "MiB held by a build or DVC"):
        table.add_column(column)
    for kind in sorted(files):
        table.add_row(
            kind,
            f"{pieces.get(kind, 0):,}",
            f"{files[kind]:,}",
            f"{sizes[kind] / 2**20:.1f}",
            f"{elsewhere[kind] / 2**20:.1f}",
        )
    return table
