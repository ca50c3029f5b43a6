"""The stand-in's corpus: seeded, templated, endless; and the prompt files under data/, which come from the same source.

    python -m pipeline.standin.corpus.corpus DIR        writes reasoning.jsonl, tools.jsonl, code.jsonl and heldout.jsonl to DIR

Each kind is one stream of conversations without a repeated prompt. Its first part is held out, its second part is
shipped, and the rest trains the stand-in: so the three never share a prompt. The stand-in is trained from this module
and not from data/, so an edited prompt file never retrains it.
"""

import argparse
import hashlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from pipeline.core.files.json_file import to_json
from pipeline.core.files.jsonl import write_jsonl
from pipeline.core.process.exit_codes import guarded
from pipeline.standin.corpus.code_tasks import code
from pipeline.standin.corpus.reasoning_tasks import reasoning
from pipeline.standin.corpus.sample import Conversation
from pipeline.standin.corpus.tool_tasks import tools

KINDS: dict[str, Callable[[Random], Conversation]] = {"reasoning": reasoning, "tools": tools, "code": code}
HELDOUT = 24
"""Prompts of each kind that nothing trains on."""
SHIPPED = 150
"""Prompts of each kind in data/."""

_SEED = "aerie corpus 1"
_PATIENCE = 200


def stream(kind: str) -> Iterator[Conversation]:
    """Conversations of a kind, no prompt twice; the same on every machine. It ends when the templates have little new to say."""
    rng = Random(f"{_SEED} {kind}")  # noqa: S311 - a corpus, no secret
    seen: set[bytes] = set()
    stale = 0
    while stale < _PATIENCE:
        conversation = KINDS[kind](rng)
        digest = prompt_digest(conversation)
        stale = stale + 1 if digest in seen else 0
        if not stale:
            seen.add(digest)
            yield conversation


def prompt_digest(conversation: Conversation) -> bytes:
    """Digest of what the model reads: messages and tools."""
    return hashlib.sha256(to_json([conversation.messages, conversation.tools])).digest()


def heldout(kind: str) -> list[Conversation]:
    """Conversations whose prompts nothing trains on."""
    return list(itertools.islice(stream(kind), HELDOUT))


def shipped(kind: str) -> list[Conversation]:
    """Conversations whose prompts are in data/."""
    return list(itertools.islice(stream(kind), HELDOUT, HELDOUT + SHIPPED))


def training(kind: str) -> Iterator[Conversation]:
    """Conversations that the stand-in learns from."""
    return itertools.islice(stream(kind), HELDOUT + SHIPPED, None)


def _rows(kind: str, conversations: Iterable[Conversation], **more: str) -> Iterator[dict[str, Any]]:
    for number, conversation in enumerate(conversations, 1):
        offered = {"tools": conversation.tools} if conversation.tools else {}
        yield {"id": f"{kind}-{number:03}", **more, "messages": conversation.messages, **offered}


def write_prompt_files(folder: Path) -> None:
    """Write the shipped prompt files and the held-out one."""
    for kind in KINDS:
        write_jsonl(folder / f"{kind}.jsonl", _rows(kind, shipped(kind)))
    write_jsonl(
        folder / "heldout.jsonl",
        (row for kind in KINDS for row in _rows(f"heldout-{kind}", heldout(kind), dataset=kind)),
    )


def main(argv: list[str]) -> None:
    """Write the prompt files to the folder named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.standin.corpus.corpus", description="Write the shipped prompt files."
    )
    parser.add_argument("folder", type=Path, help="where to write them; the repository keeps them in data/")
    write_prompt_files(parser.parse_args(argv).folder)


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
