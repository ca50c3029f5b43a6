"""The prompts of a dataset, read a few at a time: memory does not grow with the dataset."""

from collections.abc import Iterable, Iterator
from itertools import compress, islice, repeat
from pathlib import Path

import orjson

from pipeline.core.errors import ArtifactError
from pipeline.core.files.jsonl import read_lines
from pipeline.stages.generate.requests.request import PromptRow, RequestBuilder

CHUNK = 128
"""Prompts looked up in the ledger at a time."""


def read_prompts(path: Path, chosen: Iterable[int] = repeat(1)) -> Iterator[PromptRow]:
    """Yield a build's prompts in order, or those with a 1 in ``chosen``. The prompts stage has checked them already.

    Raises:
        ArtifactError: the file was damaged since.

    """
    for number, line in compress(read_lines(path), chosen):
        try:
            row = orjson.loads(line)
            yield PromptRow(row["id"], row["messages"], row.get("tools"))
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise ArtifactError(
                f"{path}:{number}: not a prompt ({error}); run `dvc repro` to make the file anew"
            ) from error


def keyed(path: Path, builder: RequestBuilder, chosen: Iterable[int] = repeat(1)) -> Iterator[tuple[str, PromptRow]]:
    """Yield the prompts of `read_prompts` with their keys."""
    return ((builder.key(prompt.messages, prompt.tools), prompt) for prompt in read_prompts(path, chosen))


def chunks(path: Path, builder: RequestBuilder) -> Iterator[list[tuple[str, PromptRow]]]:
    """Yield all prompts with their keys, `CHUNK` at a time."""
    rows = keyed(path, builder)
    while chunk := list(islice(rows, CHUNK)):
        yield chunk


def plan_row(prompt_id: str, key: str, attempt: int) -> bytes:
    """Return a prompt's part of the digest that decides whether responses.jsonl would change.

    ``attempt`` is the id of the request that settled it, or 0.
    """
    return f"{prompt_id}\0{key}\0{attempt}\n".encode()
