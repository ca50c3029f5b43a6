"""The held-out evaluation prompts, as hashes with which rows are compared."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.core.errors import InputError
from pipeline.core.files.jsonl import read_jsonl
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.audit.features.grams import Hashes, gram_hashes, sequence_hash
from pipeline.stages.audit.features.words import word_ids, words_of
from pipeline.stages.audit.inputs.messages import question

MIN_WORDS = 4
"""Fewest words of a held-out prompt that is searched inside longer messages."""
MIN_CHARS = 12
"""Fewest characters of such a prompt, since four short words may follow each other by chance."""


@dataclass(frozen=True)
class Heldout:
    """The questions of the held-out file: hashes of each last user message, and of its n-grams."""

    n: int
    questions: frozenset[int]
    """Hash of the words of each question."""
    inside: dict[int, tuple[frozenset[int], frozenset[int]]]
    """Questions that are long enough to be searched inside a message: hash of the first words, and the numbers of words
    and the hashes of all questions that begin so."""
    word_grams: Hashes
    """Hashes of the n-grams of words, sorted and distinct."""
    grams: Hashes
    """Hashes of the n-grams of ids, sorted and distinct."""

    def is_question(self, words: NDArray[np.int32]) -> bool:
        """Return whether the words of a message are those of a held-out question."""
        return len(words) > 0 and sequence_hash(words) in self.questions

    def holds_question(self, words: NDArray[np.int32]) -> bool:
        """Return whether a held-out question is somewhere in the words of a message."""
        if not self.inside:
            return False
        hashes = gram_hashes(words, MIN_WORDS)
        known = np.fromiter(self.inside, dtype=np.uint64, count=len(self.inside))
        for start in np.flatnonzero(np.isin(hashes, known)).tolist():
            lengths, wholes = self.inside[int(hashes[start])]
            if any(
                start + length <= len(words) and sequence_hash(words[start : start + length]) in wholes
                for length in lengths
            ):
                return True
        return False

    def shared_words(self, words: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return whether each n-gram of some words is held out; [max(0, len(words) - n + 1)]."""
        return _among(gram_hashes(words, self.n), self.word_grams)

    def shared(self, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return whether each n-gram of some ids is held out; [max(0, len(ids) - n + 1)]."""
        return _among(gram_hashes(ids, self.n), self.grams)


def _among(hashes: Hashes, known: Hashes) -> NDArray[np.bool_]:
    if not len(known):
        return np.zeros(len(hashes), dtype=np.bool_)
    return np.asarray(known[np.searchsorted(known, hashes).clip(max=len(known) - 1)] == hashes)


def to_ids(text: str, tokenizer: Tokenizer) -> NDArray[np.int32]:
    """Return the ids that a message has inside a prompt."""
    return np.array(tokenizer.encode(text), dtype=np.int32)


def make_heldout(questions: list[str], tokenizer: Tokenizer, n: int) -> Heldout:
    """Return the hashes of some questions."""
    spelled = [words_of(text) for text in questions]
    inside: dict[int, tuple[set[int], set[int]]] = {}
    for words in spelled:
        if len(words) >= MIN_WORDS and sum(map(len, words)) >= MIN_CHARS:
            numbers = word_ids(words)
            lengths, wholes = inside.setdefault(int(gram_hashes(numbers[:MIN_WORDS], MIN_WORDS)[0]), (set(), set()))
            lengths.add(len(numbers))
            wholes.add(sequence_hash(numbers))
    empty = np.zeros(0, dtype=np.uint64)
    return Heldout(
        n,
        frozenset(sequence_hash(word_ids(words)) for words in spelled if words),
        {key: (frozenset(lengths), frozenset(wholes)) for key, (lengths, wholes) in inside.items()},
        np.unique(np.concatenate([empty, *(gram_hashes(word_ids(words), n) for words in spelled)])),
        np.unique(np.concatenate([empty, *(gram_hashes(to_ids(text, tokenizer), n) for text in questions)])),
    )


def read_heldout(path: Path, tokenizer: Tokenizer, n: int) -> Heldout:
    """Read a JSONL file of prompts.

    Raises:
        InputError: the file is missing, or a line is not a prompt; the message has the line's number.

    """
    questions = []
    for number, prompt in read_jsonl(path):
        text = question(prompt)
        if text is None:
            raise InputError(f"{path}:{number}: no user message in it; a held-out line needs `messages` with one")
        questions.append(text)
    return make_heldout(questions, tokenizer, n)
