"""Free space on the ledger's disk against the answers in flight: a full disk loses paid answers."""

import shutil
from pathlib import Path

from pipeline.core.errors import DiskError
from pipeline.stages.generate.ledger.connection import FILE

_ROW_BYTES = 1 << 17
"""Bytes that an answer takes besides its text.

A commit of its own rewrites some six pages of 16 KiB, and rounds the text up to whole pages.
"""
_BYTES_A_TOKEN = 8
"""Bytes for a token's text, and for its share of the JSON around it."""


class FreeDisk:
    """Compares the free space on the ledger's disk with what may be needed."""

    def __init__(self, folder: Path, most_tokens: int) -> None:
        """``most_tokens``: the most tokens of one answer."""
        self._folder = folder
        self._write_ahead_log = folder / f"{FILE}-wal"
        self._body_bytes = _BYTES_A_TOKEN * most_tokens

    def learn(self, size: int) -> None:
        """Take note of a body's bytes: with log-probabilities, a token takes many times the bytes assumed here."""
        self._body_bytes = max(self._body_bytes, size)

    def shortage(self, in_flight: int) -> DiskError | None:
        """Return the error why nothing more may be sent while that many answers are in flight, or None."""
        try:
            # at the end SQLite copies the write-ahead log into the ledger, and needs room for that
            copied = self._write_ahead_log.stat().st_size
        except OSError:
            copied = 0
        needed = in_flight * (_ROW_BYTES + self._body_bytes) + copied
        try:
            free = shutil.disk_usage(self._folder).free
        except OSError as error:
            return DiskError(f"{self._folder}: {error.strerror or error}; all answers so far were in that folder")
        if free >= needed:
            return None
        return DiskError(
            f"{self._folder}: {free:,} bytes are left on the disk, and the answers in flight may need {needed:,}: "
            "free some space and run again; all answers so far are kept"
        )
