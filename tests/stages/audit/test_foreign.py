"""Files of other tools: the columns that are read, and the messages about files that cannot be used."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import splintr

from pipeline.__main__ import main
from pipeline.core.errors import InputError
from pipeline.core.files.tables import read_rows
from pipeline.formats.schema.findings import SCHEMA as FINDINGS
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.audit.inputs.foreign import open_tokens
from tests.stages.audit.rows import answer, clean_rows, write_tokens

pytestmark = pytest.mark.slow


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [row for batch in open_tokens(path)() for row in batch.to_pylist()]


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def write_parquet(path: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_our_own_table_is_taken_as_it_is(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write_tokens(tmp_path / "tokens.parquet", clean_rows(tokenizer, 3))
    assert rows_of(path) == list(read_rows(path, SCHEMA))


@pytest.mark.parametrize("completion", ["output_ids", "completion_ids", "response_ids", "token_ids"])
@pytest.mark.parametrize("prompt", ["input_ids", "prompt_ids"])
def test_jsonl_with_any_usual_name_of_the_ids_is_read(tmp_path: Path, prompt: str, completion: str) -> None:
    path = write_jsonl(
        tmp_path / "x.jsonl",
        [{"id": "a", prompt: [1, 2], completion: [3]}, {prompt: [], completion: [4, 5], "finish_reason": "length"}],
    )
    assert [(row["id"], row["prompt_ids"], row["completion_ids"], row["finish_reason"]) for row in rows_of(path)] == [
        ("a", [1, 2], [3], None),
        ("row-1", [], [4, 5], "length"),
    ]


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.uint32(), pa.int16()])
@pytest.mark.parametrize("lists", [pa.list_, pa.large_list])
def test_parquet_with_whole_numbers_of_any_width_is_read(tmp_path: Path, kind: Any, lists: Any) -> None:
    column = pa.array([[1, 2], [], [3]], type=lists(kind))
    path = write_parquet(tmp_path / "x.parquet", {"output_ids": column, "id": [7, 8, 9]})
    assert [(row["id"], row["prompt_ids"], row["completion_ids"]) for row in rows_of(path)] == [
        ("7", [], [1, 2]),
        ("8", [], []),
        ("9", [], [3]),
    ]


def test_parquet_is_told_by_its_content_whatever_its_name(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.jsonl", {"input_ids": [[1]], "output_ids": [[2]]})
    assert rows_of(path)[0]["completion_ids"] == [2]


@pytest.mark.parametrize("packed", ["gzip", "zstd"])
def test_packed_jsonl_is_told_by_its_content(tmp_path: Path, packed: str) -> None:
    with pa.CompressedOutputStream(str(tmp_path / "x.jsonl"), packed) as file:
        file.write(b'{"output_ids":[1]}\n{"output_ids":[2]}\n')
    assert [row["completion_ids"] for row in rows_of(tmp_path / "x.jsonl")] == [[1], [2]]


def test_names_may_be_categories(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path / "x.parquet", {"output_ids": [[1], [2]], "provider": pa.array(["a", "b"]).dictionary_encode()}
    )
    assert [row["provider"] for row in rows_of(path)] == ["a", "b"]


def test_our_own_table_is_read_also_when_another_tool_wrote_it_again(tmp_path: Path, tokenizer: Tokenizer) -> None:
    table = pq.read_table(write_tokens(tmp_path / "tokens.parquet", clean_rows(tokenizer, 3)))
    wide = {
        "prompt_ids": pa.large_list(pa.int64()),
        "completion_ids": pa.list_(pa.uint32()),
        "provider": pa.large_string(),
        "count_delta": pa.int64(),
    }
    path = write_parquet(
        tmp_path / "wide.parquet",
        {name: table[name].cast(wide.get(name, table[name].type)) for name in reversed(table.column_names)},
    )
    assert rows_of(path) == table.to_pylist()
    spoiled = write_parquet(
        tmp_path / "bad.parquet", {**{name: table[name] for name in table.column_names}, "segments": ["x"] * 3}
    )
    with pytest.raises(InputError, match=r"column segments is string; needed is list<"):
        rows_of(spoiled)


def test_what_a_file_does_not_know_is_taken_from_the_response_lines(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = clean_rows(tokenizer, 30)
    tokens = write_jsonl(
        tmp_path / "x.jsonl",
        [{"id": row.id, "input_ids": row.prompt_ids, "output_ids": row.completion_ids} for row in rows],
    )
    lines: list[dict[str, Any]] = [
        {
            "id": row.id,
            "response": {
                "provider": "alpha",
                "choices": [{"finish_reason": "stop"}],
                "usage": {"completion_tokens": len(row.completion_ids)},
            },
        }
        for row in rows
    ]
    lines[4]["response"]["usage"]["completion_tokens"] += 17
    lines[5]["response"]["choices"][0]["finish_reason"] = "content_filter"
    assert (
        audit(tokens, tmp_path / "out", "--responses", str(write_jsonl(tmp_path / "r.jsonl", lines)), "--deny", "beta")
        == 0
    )
    summary = json.loads((tmp_path / "out" / "summary.json").read_bytes())
    assert summary["billing"]["max_absolute"] == 17
    assert summary["providers"]["alpha"]["rows"] == 30
    assert [(row["id"], row["check"]) for row in read_rows(tmp_path / "out" / "findings.parquet", FINDINGS)][:2] == [
        ("r4", "count_difference"),
        ("r5", "content_filter"),
    ]


BAD_PARQUET: list[tuple[dict[str, Any], str]] = [
    ({"text": ["a"]}, r"has the columns \['text'\]; needed is one of .*output_ids"),
    ({"output_ids": [[1.5]]}, r"column output_ids is list<.*double>; needed is a list of whole numbers"),
    ({"output_ids": [1]}, r"column output_ids is int64; needed is a list of whole numbers"),
    ({"output_ids": pa.array([[1], None], type=pa.list_(pa.int64()))}, r"row 1: output_ids is null"),
    (
        {"output_ids": pa.array([[1], [1, None]], type=pa.list_(pa.int64()))},
        r"row 1: output_ids has null among its ids",
    ),
    (
        {"output_ids": [[1], [2], [3, 1 << 40]]},
        r"row 2: output_ids has 1099511627776 among its ids; needed are whole numbers that fit 32 bits",
    ),
    ({"output_ids": [[1]], "provider": [1.5]}, r"column provider is double; needed is text"),
]


@pytest.mark.parametrize(("columns", "message"), BAD_PARQUET, ids=[message[:20] for _columns, message in BAD_PARQUET])
def test_a_parquet_file_without_usable_ids_is_refused_with_what_is_there_and_what_is_needed(
    tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    path = write_parquet(tmp_path / "x.parquet", columns)
    with pytest.raises(InputError, match=message) as caught:
        rows_of(path)
    assert str(path) in str(caught.value)


BAD_JSONL: list[tuple[list[Any], str]] = [
    ([], r"x.jsonl: empty; needed are"),
    ([{"output_ids": [1]}, {"text": "a"}], r"x.jsonl:2: has the keys \['text'\]; needed is one of .*output_ids"),
    (
        [{"output_ids": [1]}, {"output_ids": [1, "a"]}],
        r"x.jsonl:2: output_ids must be a list of whole numbers.* found 'a'",
    ),
    ([{"output_ids": [True]}], r"x.jsonl:1: output_ids must be .* found 'True'"),
    ([{"output_ids": "abc"}], r"x.jsonl:1: output_ids must be .* found 'abc'"),
    ([{"output_ids": [1 << 31]}], r"x.jsonl:1: .*fit 32 bits; found '2147483648'"),
    ([[1]], r"x.jsonl:1: needed is an object"),
    ([{"output_ids": [1], "id": {"a": 1}}], r"x.jsonl:1: id must be text; found"),
    (["{"], r"x.jsonl:1: not JSON.*; needed are Parquet, or JSONL"),
]


@pytest.mark.parametrize(("rows", "message"), BAD_JSONL, ids=[message[:30] for _rows, message in BAD_JSONL])
def test_a_bad_line_of_jsonl_is_named_with_what_is_wrong(tmp_path: Path, rows: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rows_of(write_jsonl(tmp_path / "x.jsonl", rows))


def audit(tokens: Path, out: Path, *more: str) -> int:
    return main(["audit", "--target", "kimi_k25", "--tokens", str(tokens), "--out", str(out), *more])


def test_a_team_can_audit_ids_that_it_has_already(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = [{"input_ids": row.prompt_ids, "output_ids": row.completion_ids} for row in clean_rows(tokenizer, 30)]
    rows[7]["output_ids"].pop()
    assert audit(write_jsonl(tmp_path / "x.jsonl", rows), tmp_path / "out") == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_bytes())
    assert summary["left_out"] == {"check: ends_with_end_token": 1}
    assert summary["evidence"] == {"none": 30}


def test_a_missing_file_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(tmp_path / "none.parquet", tmp_path / "out") == 2
    assert "none.parquet: No such file" in capsys.readouterr().err


def test_ids_of_a_larger_vocabulary_are_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"output_ids": [5, 200000 + i]} for i in range(20)])
    assert audit(path, tmp_path / "out") == 2
    assert (
        "not the ids of target 'kimi_k25': 20 of the first 20 answers have ids outside its vocabulary of 163840; "
        "the largest is 200019" in capsys.readouterr().err
    )


def test_a_few_rows_are_of_another_vocabulary_only_when_all_of_them_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [{"output_ids": [5, 200000]}, {"output_ids": [6, 200001]}]
    assert audit(write_jsonl(tmp_path / "x.jsonl", few), tmp_path / "out") == 2
    assert "2 of the first 2 answers have ids outside" in capsys.readouterr().err
    assert audit(write_jsonl(tmp_path / "y.jsonl", [*few, {"output_ids": [7]}]), tmp_path / "out") == 1


def test_ids_of_another_tokenizer_are_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = splintr.Tokenizer.from_pretrained("cl100k_base")
    text = (Path(__file__).parent / "test_foreign.py").read_text("utf-8")
    path = write_jsonl(
        tmp_path / "x.jsonl",
        [{"output_ids": other.encode_ordinary(text[start : start + 400])} for start in range(0, 4000, 400)],
    )
    assert audit(path, tmp_path / "out") == 2
    assert (
        "none of the first 10 answers has any of its structural tokens, not even '<|im_end|>', "
        "and their ids decode to text" in capsys.readouterr().err
    )


def test_answers_with_the_wrong_end_token_are_a_no_go_and_not_another_vocabulary(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    rows = [
        {"input_ids": row.prompt_ids, "output_ids": [*row.completion_ids[:-1], 163533]}
        for row in clean_rows(tokenizer, 30)
    ]
    assert audit(write_jsonl(tmp_path / "x.jsonl", rows), tmp_path / "out") == 1
    summary = json.loads((tmp_path / "out" / "summary.json").read_bytes())
    assert summary["checks"]["ends_with_end_token"]["rows"] == 30


def test_duplicates_are_found_across_datasets(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = clean_rows(tokenizer, 30)
    other = write_tokens(tmp_path / "code" / "tokens.parquet", rows[:3])
    assert audit(write_tokens(tmp_path / "tokens.parquet", rows[2:]), tmp_path / "out", "--against", str(other)) == 0
    found = (tmp_path / "out" / "report.html").read_text()
    assert "same answer as code:r2" in found
    assert json.loads((tmp_path / "out" / "summary.json").read_bytes())["checks"]["duplicate_prompts"]["rows"] == 1


def test_held_out_prompts_are_found(tmp_path: Path, tokenizer: Tokenizer) -> None:
    question = (
        "Name seven rivers of the north that reach the sea "
        "without passing through any town of more than a thousand people."
    )
    heldout = write_jsonl(tmp_path / "heldout.jsonl", [{"messages": [{"role": "user", "content": question}]}])
    rows = [
        *clean_rows(tokenizer, 30),
        answer(tokenizer, "leak", prompt_ids=[163587, *tokenizer.encode(question), 163606]),
    ]
    assert audit(write_tokens(tmp_path / "tokens.parquet", rows), tmp_path / "out", "--heldout", str(heldout)) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_bytes())
    assert summary["checks"]["contamination"]["rows"] == 1


def test_a_held_out_line_without_a_question_is_named(
    tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    heldout = write_jsonl(tmp_path / "heldout.jsonl", [{"messages": []}])
    assert (
        audit(
            write_tokens(tmp_path / "tokens.parquet", clean_rows(tokenizer, 1)),
            tmp_path / "out",
            "--heldout",
            str(heldout),
        )
        == 2
    )
    assert "heldout.jsonl:1: no user message in it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("column", "word", "message"),
    [
        ("status", "maybe", r"column status has 'maybe'; needed is one of \['accept', 'flag', 'reject'\]"),
        ("evidence", "guess", r"column evidence has 'guess'; needed is one of \['count', 'ids', 'logprobs', 'text'\]"),
        ("segments", None, r"a tokens\.parquet without \['segments'\]"),
    ],
)
def test_a_table_like_ours_with_unknown_words_or_without_a_column_is_refused(
    column: str, word: str | None, message: str, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    path = write_tokens(tmp_path / "tokens.parquet", clean_rows(tokenizer, 3))
    table = pq.read_table(path)
    words = None if word is None else pa.array(["accept" if column == "status" else None, word, word])
    pq.write_table(
        table.drop_columns([column])
        if words is None
        else table.set_column(table.schema.get_field_index(column), column, words),
        path,
    )
    with pytest.raises(InputError, match=message):
        list(open_tokens(path)())
