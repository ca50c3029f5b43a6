"""The real vocabulary as the checks see it."""

import pytest

from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.audit.inputs.context import Context, make_context


@pytest.fixture(scope="session")
def context(kimi: TargetRecord, tokenizer: Tokenizer) -> Context:
    """Kimi-K2.5, for a dataset without expectations."""
    return make_context(kimi, tokenizer)
