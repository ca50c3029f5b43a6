"""The test that a file holds ids of the target: with another's ids every check would fail.

Their findings would hide the real mistake, so such a file is refused before any check runs.
"""

import numpy as np

from pipeline.core.errors import InputError
from pipeline.stages.audit.features.retokenize import changed
from pipeline.stages.audit.inputs.context import Context
from pipeline.stages.audit.inputs.source import Source

MIN_ROWS = 8
"""Rows needed to judge, since most of a few may be faulty by chance. Two are enough where all have too large ids."""
MAX_SPLIT = 0.1
"""Largest share of tokens that encoding again may change.

Measured with Kimi's vocabulary: of English in ids of cl100k, o200k, Llama 3 or DeepSeek, 15 to 17 % of the tokens
change; of Kimi's own sampled ids, 1 %.
"""


def check_fit(source: Source, context: Context) -> None:
    """Refuse a file whose first rows are plainly of another vocabulary.

    Raises:
        InputError: most of the first rows have ids outside the vocabulary; or none has a structural token of the
            target, and encoding their text again gives other tokens.

    """
    batch = next(source.batches(context), None)
    if batch is None:
        return
    size, values = context.record.vocab_size, batch.completion.values
    rows = np.flatnonzero(batch.completion.lengths > 0)
    what = f"{source.name}: these are not the ids of target {context.record.name!r}"
    outside = np.unique(batch.completion.where(np.flatnonzero(values >= size))[0])
    if len(outside) > len(rows) / 2 and (len(rows) >= MIN_ROWS or 1 < len(rows) == len(outside)):
        raise InputError(
            f"{what}: {len(outside)} of the first {len(rows)} answers have ids outside its vocabulary of {size}; "
            f"the largest is {values.max()}"
        )
    roles = [token for role, _text in context.record.roles if (token := context.role(role)) is not None]
    if len(rows) < MIN_ROWS or np.isin(values, roles).any():
        return
    split = sum(len(changed(context, run)) for runs in batch.runs for run in runs)
    if split > MAX_SPLIT * len(values):
        raise InputError(
            f"{what}: none of the first {len(rows)} answers has any of its structural tokens, "
            f"not even {context.record.roles.end!r}, and their ids decode to text "
            f"that it would split in another way ({split / len(values):.0%} of the tokens)"
        )
