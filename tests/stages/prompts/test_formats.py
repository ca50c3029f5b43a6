"""Every form that prompts come in, and files that are damaged."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from pipeline.core.errors import InputError
from pipeline.core.files.digests import sha256_file
from pipeline.stages.prompts.config import PromptsSection
from pipeline.stages.prompts.stage import Config, run

TARGET = {"send_tools": True, "chat": "kimi_k25"}
"""The other keys of the stage's config."""
ROWS = [{"messages": [{"role": "user", "content": f"Line\u2028{number}"}], "id": f"r{number}"} for number in range(5)]
TEXT = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def prepare(source: Path, **section: Any) -> list[dict[str, Any]]:
    config = Config.model_validate(
        {"prompts": {"path": str(source), **section}, **TARGET, "digest": sha256_file(source)}
    )
    out = source.parent / "prompts.jsonl"
    run(config, prompts=out, summary=source.parent / "prompts.json")
    return [json.loads(line) for line in out.read_text().split("\n") if line]


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "data"), [("s.jsonl", TEXT), ("s.jsonl.gz", gzip.compress(TEXT)), ("s.jsonl.zst", zstd(TEXT))]
)
def test_plain_and_compressed_lines_give_the_same_prompts(tmp_path: Path, name: str, data: bytes) -> None:
    rows = prepare(write(tmp_path / name, data))
    assert [(row["id"], row["messages"]) for row in rows] == [(row["id"], row["messages"]) for row in ROWS]


@pytest.mark.parametrize(("name", "data"), [("s.jsonl.gz", gzip.compress(TEXT)), ("s.jsonl.zst", zstd(TEXT))])
@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"not compressed at all"])
def test_a_damaged_compressed_file_is_named(tmp_path: Path, name: str, data: bytes, damage: Any) -> None:
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        prepare(write(tmp_path / name, damage(data)))


def test_parquet_rows_with_tools_as_text(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    table = pa.table({"messages": [row["messages"] for row in ROWS], "tools": [json.dumps(tools)] + [None] * 4})
    pq.write_table(table, tmp_path / "s.parquet")
    rows = prepare(tmp_path / "s.parquet")
    assert rows[0]["tools"] == tools
    assert rows[1]["tools"] is None
    assert len(rows) == 5


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"s\.parquet: not a whole Parquet file"):
        prepare(write(tmp_path / "s.parquet", b"PAR1 and no more"))


def test_sharegpt_conversations_and_the_answer_that_is_asked_anew(tmp_path: Path) -> None:
    turns = [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "Hi"},
        {"from": "gpt", "value": "Hello"},
    ]
    source = write(tmp_path / "s.jsonl", json.dumps({"conversations": turns}).encode())
    (row,) = prepare(source, columns={"messages": None, "conversations": "conversations"}, drop_last_answer=True)
    assert row["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def test_a_later_question_keeps_the_earlier_answer(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}, {"from": "human", "value": "More"}]
    source = write(tmp_path / "s.jsonl", json.dumps({"conversations": turns}).encode())
    (row,) = prepare(source, columns={"messages": None, "conversations": "conversations"}, drop_last_answer=True)
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "user"]


def test_an_unknown_speaker_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "s.jsonl", json.dumps({"conversations": [{"from": "narrator", "value": "x"}]}).encode())
    with pytest.raises(InputError, match=r"s\.jsonl:1: turn 0 must be"):
        prepare(source, columns={"messages": None, "conversations": "conversations"})


def test_one_column_of_text_and_one_of_instructions(tmp_path: Path) -> None:
    source = write(tmp_path / "s.jsonl", json.dumps({"question": "Why?", "rules": "Be brief."}).encode())
    (row,) = prepare(source, columns={"messages": None, "prompt": "question", "system": "rules"})
    assert row["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]


def test_a_name_that_tells_no_format_is_refused_with_those_known(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"s\.txt: the name does not tell the format; use one of \.jsonl"):
        prepare(write(tmp_path / "s.txt", TEXT))


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ({"path": "x.jsonl", "columns": {"prompt": "p"}}, "exactly one of messages, conversations and prompt"),
        ({"path": "x.jsonl", "columns": {"messages": None}}, "exactly one of messages, conversations and prompt"),
        ({"path": "hf://a/b"}, "a hub dataset needs a commit"),
        ({"path": "hf://a/b", "revision": "main"}, "a hub dataset needs a commit"),
    ],
)
def test_a_contradictory_section_is_refused(section: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        PromptsSection.model_validate(section)


def test_fields_that_a_parquet_file_fills_with_nulls_are_not_asked(tmp_path: Path) -> None:
    messages = [[{"role": "user", "content": "a", "name": None}], [{"role": "user", "content": "b", "name": "Ada"}]]
    pq.write_table(pa.table({"messages": messages}), tmp_path / "s.parquet")
    assert [row["messages"][0].get("name", "absent") for row in prepare(tmp_path / "s.parquet")] == ["absent", "Ada"]


def test_tools_and_tool_calls_that_a_parquet_file_fills_with_nulls_are_as_in_lines(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    first = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }
    parameters = {"type": "object", "properties": {"x": {"type": "string", "enum": ["u"]}}}
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": parameters}},
        {"type": "function", "function": {"name": "g", "description": "G"}},
    ]
    second = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "b", "cache": "x"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": [{"type": "text", "text": "c"}], "tool_call_id": "c"},
        ],
        "tools": tools,
    }
    rows = [first, second]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "s.parquet")
    lines = write(tmp_path / "s.jsonl", b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    assert [row["tools"] for row in prepare(tmp_path / "s.parquet")] == [row["tools"] for row in rows]
    found = [
        {message["role"]: message.get("content") for message in row["messages"]}
        for row in prepare(tmp_path / "s.parquet")
    ]
    assert found == [{message["role"]: message.get("content") for message in row["messages"]} for row in prepare(lines)]


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + TEXT,
        TEXT.replace(b"\n", b"\r\n"),
        TEXT.replace(b"\n", b"\n \n\r\n")[:-4],
        gzip.compress(TEXT[:30]) + gzip.compress(TEXT[30:]),
    ],
)
def test_what_editors_and_compressors_do_to_lines_changes_no_prompt(tmp_path: Path, data: bytes) -> None:
    rows = prepare(write(tmp_path / "s.jsonl.gz", data))
    assert [(row["id"], row["messages"]) for row in rows] == [(row["id"], row["messages"]) for row in ROWS]


def test_a_speaker_of_another_type_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "s.jsonl", json.dumps({"conversations": [{"from": ["human"], "value": "x"}]}).encode())
    with pytest.raises(InputError, match=r"s\.jsonl:1: turn 0 must be"):
        prepare(source, columns={"messages": None, "conversations": "conversations"})


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    messages = [[{"role": "user", "content": "a", "picture": b"x"}]]
    pq.write_table(pa.table({"messages": messages}), tmp_path / "s.parquet")
    with pytest.raises(InputError, match=r"s\.parquet: row 1: the messages and tools must be JSON"):
        prepare(tmp_path / "s.parquet")


def hub(folder: Path, **section: Any) -> list[dict[str, Any]]:
    """Read a folder as the hub's library reads a dataset, without a network."""
    pytest.importorskip("datasets", reason="the extra `hub` is not installed")
    config = Config.model_validate(
        {"prompts": {"path": f"hf://{folder}", "revision": "0" * 40, **section}, **TARGET, "digest": None}
    )
    out = folder.parent / "prompts.jsonl"
    run(config, prompts=out, summary=folder.parent / "prompts.json")
    return [json.loads(line) for line in out.read_text().split("\n") if line]


def test_a_hub_datasets_lines(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    write(tmp_path / "set" / "train.jsonl", TEXT)
    rows = hub(tmp_path / "set")
    assert [(row["id"], row["messages"]) for row in rows] == [(row["id"], row["messages"]) for row in ROWS]


def test_a_hub_datasets_conversations_in_parquet_and_another_split(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    turns = [[{"from": "human", "value": f"Hi {number}"}, {"from": "gpt", "value": "Hello"}] for number in range(3)]
    pq.write_table(pa.table({"conversations": turns}), tmp_path / "set" / "test.parquet")
    rows = hub(
        tmp_path / "set",
        split="test",
        columns={"messages": None, "conversations": "conversations"},
        drop_last_answer=True,
        limit=2,
    )
    assert [row["messages"] for row in rows] == [[{"role": "user", "content": f"Hi {number}"}] for number in range(2)]


@pytest.mark.parametrize("section", [{"split": "nowhere"}, {"subset": "unheard_of"}])
def test_a_part_that_the_hub_dataset_lacks_is_one_message(tmp_path: Path, section: dict[str, Any]) -> None:
    (tmp_path / "set").mkdir()
    write(tmp_path / "set" / "train.jsonl", TEXT)
    with pytest.raises(InputError, match=r"hf://.*set: "):
        hub(tmp_path / "set", **section)


def test_a_damaged_hub_dataset_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    write(tmp_path / "set" / "train.jsonl", b'{"messages": [\n')
    with pytest.raises(InputError, match=r"hf://.*set: "):
        hub(tmp_path / "set")


def test_a_hub_dataset_without_the_extra_says_what_to_install(tmp_path: Path) -> None:
    config = Config.model_validate({"prompts": {"path": "hf://a/b", "revision": "0" * 40}, **TARGET, "digest": None})
    with pytest.raises(InputError, match=r"pip install 'aerie\[hub\]'|hf://a/b"):
        run(config, prompts=tmp_path / "p", summary=tmp_path / "s")
