"""The tests notice a small fault in any check, except those that change no result."""

from collections import Counter
from itertools import islice

import pytest

from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.audit.checks.catalog import CHECKS
from pipeline.stages.audit.inputs.context import Context
from tests.conftest import SHARE
from tests.stages.audit.mutation import mutants, noticed

HARMLESS = {
    "one_think_close": 1,  # equal counts were left out before
    "think_close_position": 1,  # one position cannot hold both tokens
    "segments": 1,  # the position in an empty answer
    "tool_ids": 1,  # the number before the first call of an answer without calls
    "count_difference": 3,  # a difference of 0 is no finding; nothing billed
    "cost": 2,  # equality of floats; no prompt tokens counted as one
    "token_loop": 1,  # a step between two stretches of repetitions is larger than two as well
    "compression": 1,  # equality of floats
    "language": 2,  # equality of floats; a share in the message
}
"""Largest number of faults of each check that change no result."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_fault_planted_in_any_check_is_noticed(context: Context, tokenizer: Tokenizer) -> None:
    unnoticed = [
        mutant
        for mutant in islice((mutant for check in CHECKS for mutant in mutants(check)), 0, None, SHARE)
        if not noticed(mutant, context, tokenizer)
    ]
    more = Counter(mutant.check for mutant in unnoticed) - Counter(HARMLESS)
    assert not more, [(mutant.check, mutant.line, mutant.what) for mutant in unnoticed if mutant.check in more]
