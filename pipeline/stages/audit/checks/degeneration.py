"""Checks for answers that repeat themselves, and for answers in another script than the question."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.stages.audit.checks.check import Complaint
from pipeline.stages.audit.config import CompressionSection, LanguageSection, LoopSection, RepeatSection
from pipeline.stages.audit.features.grams import Hashes, gram_hashes
from pipeline.stages.audit.features.loops import Loop, find_loops, is_prose
from pipeline.stages.audit.features.prose import prose_of, without_names, without_quotes
from pipeline.stages.audit.features.scripts import script_shares
from pipeline.stages.audit.inputs.batch import Batch


def token_loop(batch: Batch, settings: LoopSection) -> Iterator[Complaint]:
    values = batch.completion.values
    repeated = np.flatnonzero(values[1:] == values[:-1]) + 1
    repeated = repeated[~np.isin(repeated, batch.completion.starts)]
    begins = np.flatnonzero(np.diff(repeated, prepend=-1) != 1)  # where a run of repetitions begins
    lengths = np.diff(begins, append=len(repeated)) + 1
    long = np.flatnonzero(lengths > settings.max_run)
    rows, positions = batch.completion.where(repeated[begins[long]] - 1)
    for row, position, length in zip(rows.tolist(), positions.tolist(), lengths[long].tolist(), strict=True):
        token = int(batch.completion[row][position])
        yield Complaint(row, position, f"{batch.context.tokenizer.show(token)!r} {length} times in a row")
    for row, loop in _phrase_loops(batch, settings):
        text = _decoded(batch, batch.completion[row][loop.start : loop.start + loop.period])
        most = settings.max_phrases if is_prose(text) else settings.max_run
        covered = loop.length / _length_of_part(batch, row, loop.start)
        if loop.times > most or (is_prose(text) and loop.times >= _FEW and covered > settings.max_covered):
            yield Complaint(
                row,
                loop.start,
                f"{text[:60]!r}, {loop.period} tokens, {loop.times} times in a row: {covered:.0%} of its part",
            )


_FEW = 3
"""Repetitions from which a phrase that covers most of an answer is a loop."""


def _phrase_loops(batch: Batch, settings: LoopSection) -> Iterator[tuple[int, Loop]]:
    """Yield each row with a loop of more than one token that is long enough."""
    for row in np.flatnonzero(batch.completion.lengths > settings.min_tokens).tolist():
        for loop in find_loops(batch.completion[row], batch.grams(row, _SHORT), _SHORT):
            if loop.period > 1 and loop.length > settings.min_tokens:
                yield row, loop


def _decoded(batch: Batch, ids: NDArray[np.int32]) -> str:
    return batch.context.bytes_of(ids)[0].decode("utf-8", "replace")


def _length_of_part(batch: Batch, row: int, position: int) -> int:
    """Return the number of tokens of the reasoning or of the rest of the answer, whichever holds a position."""
    close = int(batch.hits(batch.context.role("think_close")).first[row])
    length = int(batch.completion.lengths[row])
    return close if position < close else length - close - 1


_SHORT = 5
"""Length of the n-grams that clear most answers: the default of `near_duplicates`, which hashes them anyway."""


def _seem_repeated(batch: Batch, settings: RepeatSection) -> list[int]:
    """Return the rows whose n-grams must be counted; in all others enough of them are distinct.

    Each distinct shorter n-gram begins a distinct n-gram, except those in the last places, where no n-gram begins. So
    the number of distinct shorter ones, less the number of these places, is a lower bound.
    """
    n = min(settings.n, _SHORT)
    rows = []
    for row in np.flatnonzero(batch.completion.lengths >= max(settings.min_tokens, settings.n)).tolist():
        hashes = batch.grams(row, n)
        beyond = settings.n - n
        if _at_least_distinct(hashes) - beyond < (1 - settings.max_rate) * (len(hashes) - beyond):
            rows.append(row)
    return rows


def repeated_ngrams(batch: Batch, settings: RepeatSection) -> Iterator[Complaint]:
    for row in _seem_repeated(batch, settings):
        hashes = gram_hashes(batch.completion[row], settings.n)
        _, firsts = np.unique(hashes, return_index=True)
        rate = 1 - len(firsts) / len(hashes)
        if rate > settings.max_rate:
            again = np.ones(len(hashes), dtype=np.bool_)
            again[firsts] = False
            yield Complaint(row, int(np.argmax(again)), f"{rate:.0%} of the {settings.n}-grams repeat an earlier one")


def _at_least_distinct(hashes: Hashes) -> int:
    """Return a lower bound of the number of distinct hashes: the buckets that they fill, found without sorting."""
    bits = max(len(hashes).bit_length() + 1, 8)
    table = np.zeros(1 << bits, dtype=np.bool_)
    table[hashes >> np.uint64(64 - bits)] = True
    return int(np.count_nonzero(table))


def compression(batch: Batch, settings: CompressionSection) -> Iterator[Complaint]:
    codec = pa.Codec("lz4_raw")
    for row, runs in enumerate(batch.runs):
        data = b"".join([run.data for run in runs])
        if len(data) >= settings.min_bytes:
            ratio = len(data) / codec.compress(data).size
            if ratio > settings.max_ratio:
                yield Complaint(row, None, f"{len(data)} bytes of text shrink {ratio:.1f} times")


def language(batch: Batch, settings: LanguageSection) -> Iterator[Complaint]:
    for part, texts in (("reasoning", batch.reasonings), ("answer", batch.contents)):
        for row in np.flatnonzero(batch.present).tolist():
            asked = batch.asked[row]
            if texts[row].isascii() and asked.isascii():
                continue
            asked_shares, asked_letters = script_shares(asked)
            used = {script for script, share in asked_shares.items() if share >= settings.max_prompt_share}
            shares, letters = script_shares(texts[row])
            if asked_letters and letters >= settings.min_letters and _foreign(shares, used) >= settings.min_share:
                shares, letters = script_shares(_own_words(texts[row], asked, used))
                foreign = _foreign(shares, used)
                if letters >= settings.min_letters and foreign >= settings.min_share:
                    script = max(shares.keys() - used, key=lambda name: shares[name])
                    yield Complaint(
                        row,
                        None,
                        f"{foreign:.0%} of the {part}'s letters are {script} or another script that the prompt does "
                        f"not use; {asked_shares.get(script, 0):.0%} of the prompt's are {script}",
                    )


def _foreign(shares: dict[str, float], used: set[str]) -> float:
    """Return the share of letters in scripts that the prompt does not use."""
    return sum(share for script, share in shares.items() if script not in used)


def _own_words(text: str, asked: str, used: set[str]) -> str:
    """Return a text without code and without what is quoted from the prompt; where Latin is foreign, without names."""
    words = without_quotes(prose_of(text), asked)
    return words if "Latin" in used else without_names(words)
