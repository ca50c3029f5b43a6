"""Every reported case of provider shapes and token identity: verdict, codes, ids and counts."""

from typing import Any

import pytest

from pipeline.answers.lines import Job
from pipeline.answers.rows import PackedRow, RowMaker
from pipeline.answers.segmented_ids import unpack
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.rendering import PromptRenderer
from pipeline.model.tokenizer.tokenizer import Tokenizer
from tests.answers.build import codes, rows_of
from tests.conftest import reported_cases

BEFORE_ANY_ROW = ("T01", "T15")
"""Wrong special-token maps: refused when the target is made, so no row is ever segmented with them."""

CASES = [case for area in ("1", "2") for case in reported_cases(area) if case["id"] not in BEFORE_ANY_ROW]


def ids_of(segments: list[list[Any]], tokenizer: Tokenizer) -> list[int]:
    return [token for kind, value in segments for token in ([value] if kind == "special" else tokenizer.encode(value))]


def check(row: PackedRow, expect: dict[str, Any], tokenizer: Tokenizer) -> None:
    ids = unpack(row.completion)
    assert row.status == expect["verdict"], row
    assert codes(row) >= {*expect.get("reasons", ()), *expect.get("repairs", ())}
    if row.status == "reject":
        assert not ids
        assert row.evidence is None
        return
    wanted = expect.get("ids") or ids_of(expect["segments"], tokenizer)
    assert ids == wanted
    assert row.count_delta == expect["billing"]["delta"]
    assert [token for span in row.spans for token in ids[span.start : span.end]] == ids


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_reported_case_has_its_verdict_codes_ids_and_count(
    case: dict[str, Any], maker: RowMaker, tokenizer: Tokenizer
) -> None:
    expect = case["expect"]
    rows = rows_of(maker, case["input"])
    if choices := expect.get("choices"):
        assert [row.id for row in rows] == ["r0", "r0#1"]
        for row, choice in zip(rows, choices, strict=True):
            check(row, {**expect, **choice, "billing": {"delta": 0}}, tokenizer)
    else:
        check(rows[0], expect, tokenizer)


@pytest.mark.parametrize(
    "case", [case for case in CASES if "prompt_segments" in case["expect"]], ids=lambda case: case["id"]
)
def test_a_reported_case_has_its_prompt_ids(case: dict[str, Any], kimi: TargetRecord, tokenizer: Tokenizer) -> None:
    request = case["context"]["request"]
    assert PromptRenderer(kimi, tokenizer).render(request["messages"]) == ids_of(
        case["expect"]["prompt_segments"], tokenizer
    )


def test_the_prompt_of_a_job_stays_with_a_rejected_row(maker: RowMaker) -> None:
    (row,) = maker.rows([Job("x", {"error": {"code": 502}}, [{"role": "user", "content": "Hi"}])], {})
    assert row.status == "reject"
    assert row.prompt
