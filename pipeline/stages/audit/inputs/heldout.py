"""The held-out evaluation prompts, as hashes with which rows are compared."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.core.errors import InputError
from pipeline.core.files.jsonl import read_jsonl
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.audit.features.grams import Hashes, gram_hashes, sequence_hash


@dataclass(frozen=True)
class Heldout:
    """The questions of the held-out file: hashes of each last user message, and of its n-grams of ids."""

    n: int
    questions: frozenset[int]
    grams: Hashes
    """Hashes of n-grams, sorted and distinct."""

    def shared(self, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return whether each n-gram of some ids is held out; [max(0, len(ids) - n + 1)]."""
        hashes = gram_hashes(ids, self.n)
        if not len(self.grams):
            return np.zeros(len(hashes), dtype=np.bool_)
        found = self.grams[np.searchsorted(self.grams, hashes).clip(max=len(self.grams) - 1)]
        return np.asarray(found == hashes)


def texts_of(message: Any) -> Iterator[str]:
    """Yield the texts of a chat message, whose content is a string or a list of parts."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]


def question(prompt: Any) -> str | None:
    """Return the text of the last user message of a prompt, or None where there is none."""
    messages = prompt.get("messages") if isinstance(prompt, dict) else None
    users = (
        [message for message in messages if isinstance(message, dict) and message.get("role") == "user"]
        if isinstance(messages, list)
        else []
    )
    return "".join(texts_of(users[-1])) or None if users else None


def to_ids(text: str, tokenizer: Tokenizer) -> NDArray[np.int32]:
    """Return the ids that a message has inside a prompt."""
    return np.array(tokenizer.encode(text), dtype=np.int32)


def read_heldout(path: Path, tokenizer: Tokenizer, n: int) -> Heldout:
    """Read a JSONL file of prompts.

    Raises:
        InputError: the file is missing, or a line is not a prompt; the message has the line's number.

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
