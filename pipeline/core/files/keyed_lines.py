"""JSONL lines by their `id`, read mostly in the order of the file."""

from pathlib import Path

import orjson

from pipeline.core.errors import InputError
from pipeline.core.files.jsonl import read_lines


class KeyedLines:
    """Lines of a JSONL file by their `id`, with one line in memory at a time.

    While ids are asked for in the order of the file, the file is read once from front to back, and a line that begins
    with its id (all lines that this program writes do) is not parsed. The first id out of order builds an index of the
    offsets of all lines.
    """

    def __init__(self, path: Path, *, foreign: bool = False) -> None:
        """Open a file of this program, or a ``foreign`` one.

        In a foreign file a line without an id gets the id `line-<n>`, and a line that is not JSON is skipped.
        """
        self.path = path
        self._foreign = foreign
        self._lines = read_lines(path)
        self._offsets: dict[str, int] | None = None

    def get(self, key: str) -> bytes | None:
        """Return the bytes of the line with this id, or None when there is none.

        A line that begins with the id is not parsed, so it may be cut short.

        Raises:
            InputError: the file is missing, or a line is not JSON or has no id.

        """
        if self._offsets is None:
            for number, line in self._lines:
                if self._begins_with(line, key) or self._id(line, number) == key:
                    return line
                break
            self._lines.close()
            self._offsets = self._index()
        offset = self._offsets.get(key)
        if offset is None:
            return None
        with open(self.path, "rb") as file:
            file.seek(offset)
            return file.readline()

    def _begins_with(self, line: bytes, key: str) -> bool:
        """Return whether a line of this program has the id ``key`` as its first field, encoded as `orjson` does it."""
        return not self._foreign and line.startswith(b'{"id":' + orjson.dumps(key) + b",")

    def _id(self, line: bytes, number: int) -> str | None:
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            if self._foreign:
                return None
            raise InputError(f"{self.path}:{number}: not JSON: {error}; found {line[:80]!r}") from error
        if self._foreign:
            name = value.get("id") if isinstance(value, dict) else None
            return str(name) if (isinstance(name, str) and name) or type(name) is int else f"line-{number}"
        if not isinstance(value, dict) or not isinstance(value.get("id"), str):
            raise InputError(f"{self.path}:{number}: needs an object with a string `id`; found {line[:80]!r}")
        return str(value["id"])

    def _index(self) -> dict[str, int]:
        """Return the byte offset of the first line of each id."""
        offsets: dict[str, int] = {}
        position = 0
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip() and (name := self._id(line, number)) is not None:
                    offsets.setdefault(name, position)
                position += len(line)
        return offsets
