"""Held-out evaluation prompts, as hashes that rows are compared with."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.core.errors import InputError
from pipeline.core.files import read_jsonl
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.audit.inputs.grams import Hashes, gram_hashes, sequence_hash


@dataclass(frozen=True)
class Heldout:
    """What the held-out file asks: each user message whole, and its n-grams of ids."""

    n: int
    questions: frozenset[int]
    grams: Hashes
    """Sorted, each once."""

    def shared(self, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether each n-gram of some ids is held out; [max(0, len(ids) - n + 1)]."""
        hashes = gram_hashes(ids, self.n)
        if not len(self.grams):
            return np.zeros(len(hashes), dtype=np.bool_)
        found = self.grams[np.searchsorted(self.grams, hashes).clip(max=len(self.grams) - 1)]
        return np.asarray(found == hashes)


def texts_of(message: Any) -> Iterator[str]:
    """Text of a chat message, whether its content is a string or a list of parts."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]


def question(prompt: Any) -> str | None:
    """Text of the last user message of a prompt, or None when there is none."""
    messages = prompt.get("messages") if isinstance(prompt, dict) else None
    users = (
        [message for message in messages if isinstance(message, dict) and message.get("role") == "user"]
        if isinstance(messages, list)
        else []
    )
    return "".join(texts_of(users[-1])) or None if users else None


def to_ids(text: str, tokenizer: Tokenizer) -> NDArray[np.int32]:
    """Ids of a message as they stand inside a prompt."""
    return np.array(tokenizer.encode(text), dtype=np.int32)


def read_heldout(path: Path, tokenizer: Tokenizer, n: int) -> Heldout:
    """Read a JSONL file of prompts.

    Raises:
        InputError: it is missing, or a line is not a prompt; the message has the line's number.

    """
    questions, grams = set(), [np.zeros(0, dtype=np.uint64)]
    for number, prompt in read_jsonl(path):
        text = question(prompt)
        if text is None:
            raise InputError(f"{path}:{number}: no user message in it; a held-out line needs `messages` with one")
        ids = to_ids(text, tokenizer)
        questions.add(sequence_hash(ids))
        grams.append(gram_hashes(ids, n))
    return Heldout(n, frozenset(questions), np.unique(np.concatenate(grams)))
