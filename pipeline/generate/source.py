"""The prompts of a dataset that are not settled yet, made into requests, a few at a time: memory does not grow with the dataset."""

import sqlite3
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import orjson

from pipeline.artifacts import read_lines
from pipeline.errors import ArtifactError
from pipeline.generate.ledger import settled
from pipeline.generate.request import Asker, Question

CHUNK = 128
"""Prompts looked up in the ledger at a time."""


def read_prompts(path: Path, skip: int = 0) -> Iterator[Question]:
    """Prompts of a build, in order, without the first so many. The prompts stage has checked them, so this only parses.

    Raises:
        ArtifactError: the file was damaged since.

    """
    for number, line in islice(read_lines(path), skip, None):
        try:
            row = orjson.loads(line)
            yield Question(row["id"], row["messages"], row.get("tools"))
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise ArtifactError(f"{path}:{number}: not a prompt ({error}); run `dvc repro` to make the file again") from error


def keyed(path: Path, asker: Asker, skip: int = 0) -> Iterator[list[tuple[str, Question]]]:
    """Prompts with their keys, a chunk at a time, in order, without the first so many."""
    prompts = read_prompts(path, skip)
    while chunk := list(islice(prompts, CHUNK)):
        yield [(asker.key(prompt.messages, prompt.tools), prompt) for prompt in chunk]


def plan_row(prompt_id: str, key: str, attempt: int) -> bytes:
    """A prompt's part of the digest that tells whether responses.jsonl would change; ``attempt`` is 0 without an answer."""
    return f"{prompt_id}\0{key}\0{attempt}\n".encode()


class Unanswered:
    """Hands out prompts whose key is not settled, in order; a key that several prompts share is handed out once at a time."""

    def __init__(self, path: Path, asker: Asker, db: sqlite3.Connection, *, skip: int) -> None:
        """Begin after the first ``skip`` prompts, which are known to be settled."""
        self._rows = self._iterate(path, asker, db, skip)
        self._handed: set[str] = set()
        self._finished: set[str] = set()

    def next(self) -> tuple[str, Question] | None:
        """Key and prompt of the next request, or None at the end."""
        for key, prompt in self._rows:
            if key not in self._handed:
                self._handed.add(key)
                return key, prompt
        return None

    def finish(self, key: str) -> None:
        """Take back a key whose outcome is in the ledger. It is forgotten only after the next look-up, which sees the outcome."""
        self._finished.add(key)

    def _iterate(self, path: Path, asker: Asker, db: sqlite3.Connection, skip: int) -> Iterator[tuple[str, Question]]:
        for chunk in keyed(path, asker, skip):
            self._handed -= self._finished
            self._finished.clear()
            known = settled(db, [key for key, _ in chunk])
            yield from ((key, prompt) for key, prompt in chunk if key not in known)
