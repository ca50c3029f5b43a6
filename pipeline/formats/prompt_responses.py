"""Lines of prompts.jsonl and responses.jsonl, matched by id."""

import os
import re
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from pipeline.core.errors import InputError
from pipeline.core.files.jsonl import open_plain, read_lines
from pipeline.formats.completion.envelope import name_in

LineId = Callable[[int, bytes], str | None]
"""Give the id of a line from its number (from 1) and its bytes; None for a line without an id."""

_LEADING_ID = re.compile(rb'\{"id":"([ !#-\[\]-~]+)",')
"""Matches the start of a line that this package wrote, when its id is ASCII without escapes. Lines are long, so reading
the id alone is far cheaper than parsing the line."""


class PromptResponse(NamedTuple):
    """A prompt and its response, as lines of their files."""

    number: int
    """Of the prompt's line, from 1; of the response's line where no prompt has its id."""
    response: bytes | None
    prompt: bytes | None


class _Place(NamedTuple):
    """Place of a line in its file."""

    number: int
    offset: int
    size: int


class LinesById:
    """The lines of a JSONL file, looked up by id.

    While ids are asked for in the order of the file, it is read once from front to back, with one line in memory. The
    first id out of order reads the file again and notes where each line is: from then on a line is read when it is
    asked for.
    """

    def __init__(self, path: Path, line_id: LineId, *, matched: int = 0) -> None:
        """Open a file that is not packed.

        Its first `matched` lines are known to be taken first, in order, so their ids are not read.
        """
        self._path = path
        self._line_id = line_id
        self._matched = matched
        self._lines = read_lines(path)
        self.in_order = 0
        """Lines that were taken before the first id out of order."""
        self._places: dict[str | None, deque[_Place]] | None = None
        """Places of the lines that were not taken, by id; None while the file is read in order."""
        self._file: IO[bytes] | None = None

    def take(self, line_id: str | None) -> bytes | None:
        """Return the first line with this id that was not taken yet, or None when there is none.

        Raises:
            InputError: the file is missing or cannot be read.

        """
        if self._places is None:
            pair = next(self._lines, None)
            if pair is not None and (self.in_order < self._matched or self._line_id(*pair) == line_id):
                self.in_order += 1
                return pair[1]
            self._places = self._index(self.in_order)
        places = self._places.get(line_id)
        return self._line_at(places.popleft()) if places else None

    def find(self, line_id: str) -> bytes | None:
        """Return the first line with this id, however often it was asked for, or None when there is none.

        Raises:
            InputError: the file is missing or cannot be read.

        """
        if self._places is None:
            pair = next(self._lines, None)
            if pair is not None and self._line_id(*pair) == line_id:
                return pair[1]
            self._places = self._index(0)
        places = self._places.get(line_id)
        return self._line_at(places[0]) if places else None

    def take_rest(self) -> Iterator[tuple[int, bytes]]:
        """Take the lines that were not taken yet, in order, with their numbers."""
        if self._places is None:
            yield from self._lines
        else:
            for place in sorted(place for places in self._places.values() for place in places):
                yield place.number, self._line_at(place)

    def _index(self, skip: int) -> dict[str | None, deque[_Place]]:
        """Note where each line is, but for empty lines and the first `skip` others."""
        self._lines.close()
        places: dict[str | None, deque[_Place]] = {}
        offset = 0
        self._file = open_plain(self._path)
        weakref.finalize(self, self._file.close)
        for number, line in enumerate(self._file, 1):
            if not line.isspace():
                if skip:
                    skip -= 1
                else:
                    places.setdefault(self._line_id(number, line), deque()).append(_Place(number, offset, len(line)))
            offset += len(line)
        return places

    def _line_at(self, place: _Place) -> bytes:
        assert self._file is not None
        return os.pread(self._file.fileno(), place.size, place.offset)


def pair_by_id(
    prompts: Path, responses: Path, line_id: LineId, *, matched: int = 0
) -> Generator[PromptResponse, None, int]:
    """Pair each prompt, in order, with its response; then the responses that belong to no prompt, in order.

    A repeated id pairs its first prompt with its first response, its second with its second, and so on.

    Args:
        prompts: prompts.jsonl.
        responses: responses.jsonl, not packed.
        line_id: gives the id of a line; two lines match when it is equal, two lines without an id too.
        matched: number of leading lines known to be in the same order in both files.

    Returns:
        How many leading lines were in the same order in both files.

    Raises:
        InputError: a file is missing or cannot be read.

    """
    lines = LinesById(responses, line_id, matched=matched)
    for place, (number, prompt) in enumerate(read_lines(prompts)):
        prompt_id = None if place < matched else line_id(number, prompt)
        yield PromptResponse(number, lines.take(prompt_id), prompt)
    yield from (PromptResponse(number, response, None) for number, response in lines.take_rest())
    return lines.in_order


def required_id(path: Path) -> LineId:
    """Return a reader of the ids in a file of the build, where each line has one.

    The reader raises InputError when a line is not JSON or has no id.
    """

    def line_id(number: int, line: bytes) -> str:
        if leading := _LEADING_ID.match(line):
            return leading[1].decode("ascii")
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{path}:{number}: not JSON: {error}; found {line[:80]!r}") from error
        if not isinstance(value, dict) or not isinstance(value.get("id"), str):
            raise InputError(f"{path}:{number}: needs an object with a string `id`; found {line[:80]!r}")
        return str(value["id"])

    return line_id


def line_name(number: int, line: bytes) -> str | None:
    """Return the id of a line in a user's file.

    A line without one is `line-<number>`, and one that is not JSON has none.
    """
    try:
        value: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    name = name_in(value) if isinstance(value, dict) else None
    return str(name) if (isinstance(name, str) and name) or type(name) is int else f"line-{number}"
