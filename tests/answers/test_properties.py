"""Properties of any text: assembled ids decode and read back to the answer, and logprobs give the true ids."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.answers.lines import Job
from pipeline.answers.readings.markers import Markers, Piece
from pipeline.answers.rows import PackedRow, RowMaker
from pipeline.answers.rungs.logprobs import Vocabulary
from pipeline.answers.rungs.returned_ids import spans_of
from pipeline.answers.segmented_ids import Encoder, assemble, pack, unpack
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer
from tests.answers.build import CLOSE, END, body, rows_of

MARKS = [
    "<|im_end|>",
    "</think>",
    "<think>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|im_start|>",
    "[EOS]",
    "<｜tool▁sep｜>",
]
WORDS = st.sampled_from(
    [
        *MARKS,
        "having",
        " rollouts",
        "\n",
        "\n\n",
        " ",
        "```",
        "é",
        "我",
        "😀",
        "\x00",
        "\ufeff",
        "\u2028",
        "'s",
        "1234",
        "a" * 40,
    ]
)
TEXT = (
    st.lists(st.one_of(WORDS, st.text(st.characters(exclude_categories=["Cs"]), max_size=12)), min_size=1, max_size=12)
    .map("".join)
    .filter(bool)
)
QUICK = settings(deadline=None, max_examples=80)


@pytest.fixture(scope="module")
def vocabulary(kimi: TargetRecord, tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(kimi, tokenizer)


def resampled(ids: list[int], rng: Random, tokenizer: Tokenizer, vocabulary: Vocabulary) -> list[int]:
    """The same bytes, some tokens written as two or three."""
    result: list[int] = []
    for token in ids:
        piece = tokenizer.token_bytes(token)
        ways = list(vocabulary.splits(piece, rng.choice((2, 2, 3)))) if len(piece) > 1 and rng.random() < 0.4 else []
        result += rng.choice(ways) if ways else [token]
    return result


@QUICK
@given(reasoning=TEXT, content=TEXT)
def test_assembly_decodes_and_reads_back(
    reasoning: str, content: str, kimi: TargetRecord, tokenizer: Tokenizer
) -> None:
    markers = Markers(kimi)
    pieces = (
        Piece("reasoning", None, reasoning),
        markers.piece("think_close"),
        Piece("content", None, content),
        markers.piece("end"),
    )
    segmented = assemble(pieces, Encoder(tokenizer, markers.may_hold))
    ids = segmented.tolist()
    assert ids == [*tokenizer.encode(reasoning), CLOSE, *tokenizer.encode(content), END]
    assert [token for token in ids if token in tokenizer.special_texts] == [CLOSE, END]
    read = spans_of(ids, kimi, markers, "open")
    assert read == segmented
    texts = {kind: tokenizer.decode_bytes(ids[start:end]).decode() for kind, start, end in read.spans}
    assert (texts["reasoning"], texts["content"]) == (reasoning, content)


@QUICK
@given(text=TEXT)
def test_flat_encoding_is_ordinary_encoding(text: str, tokenizer: Tokenizer) -> None:
    assert unpack(tokenizer.encode_flat(text)) == tokenizer.encode(text)


@QUICK
@given(reasoning=TEXT, content=TEXT)
def test_a_billed_text_comes_back_exactly_or_is_not_accepted(
    reasoning: str, content: str, maker: RowMaker, tokenizer: Tokenizer
) -> None:
    """Whatever markers the model wrote out as text: an accepted row is the truth."""
    true = [*tokenizer.encode(reasoning), CLOSE, *tokenizer.encode(content), END]
    (row,) = rows_of(maker, body(reasoning, content, billed=len(true)))
    if row.status == "accept":
        assert unpack(row.completion) == true


Entries = Callable[[list[int], Tokenizer], list[dict[str, Any]]]


def true_bytes(ids: list[int], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    pieces = [
        tokenizer.special_texts[token].encode() if token in tokenizer.special_texts else tokenizer.token_bytes(token)
        for token in ids
    ]
    return [{"token": piece.decode("utf-8", "replace"), "bytes": list(piece), "logprob": -0.1} for piece in pieces]


def named_ids(ids: list[int], _: Tokenizer) -> list[dict[str, Any]]:
    return [{"token": f"token_id:{token}", "bytes": None, "logprob": -0.1} for token in ids]


def shown_text(ids: list[int], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Show nothing for a token that ends inside a character, and the whole character with its last token."""
    entries, held = [], b""
    for entry in true_bytes(ids, tokenizer):
        held += bytes(entry["bytes"])
        try:
            text = held.decode()
        except UnicodeDecodeError:
            entries.append({"token": "", "bytes": [], "logprob": -0.1})
            continue
        entries.append({"token": text, "bytes": list(held), "logprob": -0.1})
        held = b""
    return entries


@pytest.mark.parametrize(
    ("entries", "evidence"), [(true_bytes, "logprobs"), (named_ids, "ids"), (shown_text, "logprobs")]
)
@QUICK
@given(reasoning=TEXT, content=TEXT, seed=st.integers(0, 2**32))
def test_logprobs_give_the_sampled_ids_however_they_were_cut(
    entries: Entries,
    evidence: str,
    reasoning: str,
    content: str,
    seed: int,
    maker: RowMaker,
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
) -> None:
    rng = Random(seed)
    true = [
        *resampled(tokenizer.encode(reasoning), rng, tokenizer, vocabulary),
        CLOSE,
        *resampled(tokenizer.encode(content), rng, tokenizer, vocabulary),
        END,
    ]
    row = maker.rows(
        [Job("x", body(reasoning, content, billed=len(true), logprobs={"content": entries(true, tokenizer)}))], {}
    )[0]
    if row.evidence in ("ids", "logprobs"):
        assert unpack(row.completion) == true
    if entries is not shown_text:
        assert (row.evidence, row.status) == (evidence, "accept"), row


@QUICK
@given(
    reasoning=TEXT, content=TEXT, seed=st.integers(0, 2**32), key=st.sampled_from(["token_ids", "response_token_ids"])
)
def test_returned_ids_are_kept_as_sampled(
    reasoning: str, content: str, seed: int, key: str, maker: RowMaker, tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    rng = Random(seed)
    true = [
        *resampled(tokenizer.encode(reasoning), rng, tokenizer, vocabulary),
        CLOSE,
        *resampled(tokenizer.encode(content), rng, tokenizer, vocabulary),
        END,
    ]
    row = the_row(maker, body(reasoning, content, billed=len(true)), key, true)
    assert (unpack(row.completion), row.evidence, row.status) == (true, "ids", "accept")
    row = the_row(maker, body(reasoning.rstrip() or "x", content.strip() or None, billed=len(true)), key, true)
    assert row.evidence != "ids" or unpack(row.completion) == true


def the_row(maker: RowMaker, value: dict[str, Any], key: str, true: list[int]) -> PackedRow:
    value["choices"][0][key] = true
    return maker.rows([Job("x", value)], {})[0]


def test_ids_are_packed_without_loss() -> None:
    assert unpack(pack([0, 1, 163839, 2**31 - 1])) == [0, 1, 163839, 2**31 - 1]
