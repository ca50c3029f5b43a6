"""Whether a file's ids can be those of the target at all: a wrong target would make every check fail, and say nothing useful."""

import numpy as np

from pipeline.core.errors import InputError
from pipeline.stages.audit.features.retokenize import changed
from pipeline.stages.audit.inputs.context import Context
from pipeline.stages.audit.inputs.source import Source

MIN_ROWS = 8
"""Of fewer rows most may be faulty by chance; only where all of them have ids that are too large, more than one is enough."""
MAX_SPLIT = 0.1
"""Share of tokens that encoding again may change. Measured with Kimi's vocabulary: English in ids of cl100k, o200k, Llama 3 or DeepSeek
decodes to text of which 15 to 17 % of the tokens change; Kimi's own ids, sampled, change by 1 %."""


def check_fit(source: Source, context: Context) -> None:
    """Refuse rows of which the first are plainly of another vocabulary.

    Raises:
        InputError: most rows have ids outside the vocabulary, or no row has any of the format's tokens and the text splits in another way.

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
            f"{what}: {len(outside)} of the first {len(rows)} answers have ids outside its vocabulary of {size}; the largest is {values.max()}"
        )
    roles = [token for role, _text in context.record.roles if (token := context.role(role)) is not None]
    if len(rows) < MIN_ROWS or np.isin(values, roles).any():
        return
    split = sum(len(changed(context, run)) for runs in batch.runs for run in runs)
    if split > MAX_SPLIT * len(values):
        raise InputError(
            f"{what}: none of the first {len(rows)} answers has any of its structural tokens, not even {context.record.roles.end!r}, and their ids decode to text "
            f"that it would split in another way ({split / len(values):.0%} of the tokens)"
        )
