"""Checks for answers that repeat themselves, and for answers in another script than the question."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pipeline.stages.audit.checks.check import Complaint
from pipeline.stages.audit.config import CompressionSection, LanguageSection, LoopSection, RepeatSection
from pipeline.stages.audit.features.grams import Hashes, gram_hashes
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
    for row in np.flatnonzero(batch.present).tolist():
        if batch.contents[row].isascii() and batch.prompt_texts[row].isascii():
            continue
        shares, letters = script_shares(batch.contents[row])
        if letters < settings.min_letters:
            continue
        script = max(shares, key=lambda name: shares[name])
        asked, asked_letters = script_shares(batch.prompt_texts[row])
        if asked_letters and shares[script] >= settings.min_share and asked.get(script, 0) < settings.max_prompt_share:
            yield Complaint(
                row,
                None,
                f"{shares[script]:.0%} of the answer's letters are {script}, "
                f"{asked.get(script, 0):.0%} of the prompt's",
            )
