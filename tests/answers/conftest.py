"""A row maker for Kimi-K2.5, and bodies in one line."""

import pytest

from pipeline.answers.rows import RowMaker
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def maker(kimi: TargetRecord, tokenizer: Tokenizer) -> RowMaker:
    return RowMaker(kimi, tokenizer, send_tools=True)
