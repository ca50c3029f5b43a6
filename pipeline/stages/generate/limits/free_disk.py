"""Whether the ledger's disk has room for the answers that are on their way: a full one would lose what is paid for."""

import shutil
from pathlib import Path

from pipeline.core.errors import DiskError
from pipeline.stages.generate.ledger.ledger import FILE

_ROW_BYTES = 1 << 17
"""Room that an answer takes besides its text: a commit of its own writes some six pages of 16 KiB anew, and rounds the text up to whole ones."""
_BYTES_A_TOKEN = 8
"""Room for a token's text, and for its share of the JSON around it."""


class Room:
    """What is free, against what may be needed."""

    def __init__(self, folder: Path, most_tokens: int) -> None:
        """``most_tokens`` are those of one answer."""
        self._folder = folder
        self._wal = folder / f"{FILE}-wal"
        self._body = _BYTES_A_TOKEN * most_tokens

    def learn(self, size: int) -> None:
        """Take note of a body's size: with logprobs, for one, a token may take many times what is foreseen."""
        self._body = max(self._body, size)

    def shortage(self, in_flight: int) -> DiskError | None:
        """Why nothing more may be sent while so many answers are on their way; None when all of them fit."""
        try:
            copied = (
                self._wal.stat().st_size
            )  # at its end SQLite copies what stands there into the ledger, and takes whatever room there is for it
        except OSError:
            copied = 0
        needed = in_flight * (_ROW_BYTES + self._body) + copied
        try:
            free = shutil.disk_usage(self._folder).free
        except OSError as error:
            return DiskError(f"{self._folder}: {error.strerror or error}; what was answered so far was there")
        if free >= needed:
            return None
        return DiskError(
            f"{self._folder}: {free:,} bytes are left on the disk, and what is in flight may need {needed:,}: "
            "free some space and run again; what was answered so far is kept"
        )
