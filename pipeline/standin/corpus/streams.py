"""The stand-in's corpus: endless streams of dialogues from templates, the same on every machine.

Each kind is one stream without a repeated prompt. Its first part is held out, its second part is shipped under data/,
and the rest trains the stand-in, so the three never share a prompt. The stand-in is trained from this module and not
from data/, so an edited prompt file never retrains it.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterator
from random import Random

from pipeline.core.files.json_file import to_json
from pipeline.standin.corpus.code_tasks import code
from pipeline.standin.corpus.dialogue import Dialogue
from pipeline.standin.corpus.reasoning_tasks import reasoning
from pipeline.standin.corpus.tool_tasks import tools

KINDS: dict[str, Callable[[Random], Dialogue]] = {"reasoning": reasoning, "tools": tools, "code": code}
HELDOUT = 24
"""Number of prompts of each kind that nothing trains on."""
SHIPPED = 150
"""Number of prompts of each kind in data/."""

_SEED = "aerie corpus 1"
_MOST_REPEATS = 200
"""A stream ends after this many repeated prompts in a row."""


def stream(kind: str) -> Iterator[Dialogue]:
    """Yield dialogues of a kind, no prompt twice, until the templates have little new to say."""
    rng = Random(f"{_SEED} {kind}")  # noqa: S311 - a corpus, not a secret
    seen: set[bytes] = set()
    repeats = 0
    while repeats < _MOST_REPEATS:
        dialogue = KINDS[kind](rng)
        digest = prompt_digest(dialogue)
        repeats = repeats + 1 if digest in seen else 0
        if not repeats:
            seen.add(digest)
            yield dialogue


def prompt_digest(dialogue: Dialogue) -> bytes:
    """Return the digest of the model's input: messages and tools."""
    return hashlib.sha256(to_json([dialogue.messages, dialogue.tools])).digest()


def heldout(kind: str) -> list[Dialogue]:
    """Return the dialogues whose prompts nothing trains on."""
    return list(itertools.islice(stream(kind), HELDOUT))


def shipped(kind: str) -> list[Dialogue]:
    """Return the dialogues whose prompts are in data/."""
    return list(itertools.islice(stream(kind), HELDOUT, HELDOUT + SHIPPED))


def training(kind: str) -> Iterator[Dialogue]:
    """Yield the dialogues that the stand-in learns from."""
    return itertools.islice(stream(kind), HELDOUT + SHIPPED, None)
