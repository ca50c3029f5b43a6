"""The split of rows into training and held-out ones, by the content of their prompts."""

import hashlib
from collections.abc import Sequence

import torch

from pipeline.formats.hidden_states import HiddenStates
from pipeline.formats.loss_mask import LossWeights

_TAIL = 6
"""Most tokens at the end of a prompt that say whether the model shall reason: `<think>`, `</think>`, line breaks."""


def trainable_rows(states: HiddenStates, weights: LossWeights) -> list[int]:
    """Return the numbers of the rows that have a token to train on."""
    return [
        number
        for number, row in enumerate(states.index)
        if row.length > max(row.prompt_length, 1) and bool(states.loss_weights(number, weights).any())
    ]


def prompt_key(states: HiddenStates, number: int, think_open: int | None) -> bytes:
    """Return a digest of a row's prompt: rows with equal digests are held out together, or not at all.

    The opening of the reasoning at the end of the prompt does not count, so a prompt that is asked with and without
    reasoning is one prompt. If the prompt is not known, the row's name without the number of the answer (`p` for
    `p#1`) takes its place.
    """
    row = states.index[number]
    if not row.prompt_length:
        base, mark, answer = row.id.rpartition("#")
        return hashlib.sha256(f"name\0{base if mark and answer.isdecimal() else row.id}".encode()).digest()
    ids = states.token_ids(number)[: row.prompt_length]
    opened = (ids[-_TAIL:] == (-1 if think_open is None else think_open)).nonzero()
    if len(opened):
        ids = ids[: max(len(ids) - _TAIL, 0) + int(opened[0])]
    return hashlib.sha256(ids.to(torch.int32).numpy().astype("<i4").tobytes()).digest()


def heldout_prompts(keys: Sequence[bytes], share: float) -> set[bytes]:
    """Choose the prompts whose rows are held out.

    A prompt is held out if its digest, read as a fraction, is below ``share``. So it stays on its side when other rows
    are added or removed, and the share of held-out rows is ``share`` on average. With few prompts chance could hold out
    none or too many. Then the prompts of the lowest digests are taken until half of ``share`` is reached, and prompts
    that would lead beyond twice ``share`` are left in training. At least one prompt is held out and one trained on,
    unless there is only one, which is trained on.

    Args:
        keys: the digest of each row's prompt, as `prompt_key` returns it.
        share: share of rows to hold out, at least 0 and below 1.

    """
    rows_of: dict[bytes, int] = {}
    for key in keys:
        rows_of[key] = rows_of.get(key, 0) + 1
    if not share or len(rows_of) < 2:
        return set()
    smallest = min(rows_of.values())
    most = min(max(2 * share * len(keys), smallest), len(keys) - smallest)
    chosen: set[bytes] = set()
    held = 0
    for key in sorted(rows_of):
        if int.from_bytes(key[:8], "big") >= share * 2**64 and held >= share * len(keys) / 2:
            break
        if held + rows_of[key] <= most:
            chosen.add(key)
            held += rows_of[key]
    return chosen
