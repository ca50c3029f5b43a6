"""The real vocabulary as the checks see it."""

import pytest

from pipeline.audit.context import Context, make_context
from pipeline.schema.target import TargetRecord
from pipeline.tokens import Tokenizer


@pytest.fixture(scope="session")
def context(kimi: TargetRecord, tokenizer: Tokenizer) -> Context:
    """Kimi-K2.5 with no expectation of the dataset."""
    return make_context(kimi, tokenizer)
