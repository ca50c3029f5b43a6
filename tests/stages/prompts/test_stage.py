"""The prompts stage: a source file to prompts, and the rows that are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.core.files.digests import sha256_file
from pipeline.stages.prompts.stage import Config, run

TARGET = {"send_tools": True, "chat": "kimi_k25"}
"""The other keys of the stage's config."""
USER = {"messages": [{"role": "user", "content": "Hello?"}]}


def prepare(
    tmp_path: Path, text: str, chat: str = "kimi_k25", **section: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    source = tmp_path / "some.jsonl"
    source.write_text(text)
    config = Config.model_validate(
        {
            "prompts": {"path": str(source), **section},
            "send_tools": True,
            "chat": chat,
            "digest": sha256_file(source),
        }
    )
    run(config, prompts=tmp_path / "prompts.jsonl", summary=tmp_path / "prompts.json")
    rows = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    return rows, json.loads((tmp_path / "prompts.json").read_text())


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def asked(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def test_order_and_own_ids_are_kept(tmp_path: Path) -> None:
    rows, _ = prepare(tmp_path, lines(asked("b", id="second"), asked("a", id=7)))
    assert [row["id"] for row in rows] == ["second", "7"]


def test_an_id_from_content_does_not_depend_on_the_order_of_keys(tmp_path: Path) -> None:
    one, _ = prepare(tmp_path, '{"messages": [{"role": "user", "content": "x"}]}\n')
    other, _ = prepare(tmp_path, '{"messages": [{"content": "x", "role": "user"}]}\n')
    assert one[0]["id"] == other[0]["id"]


def test_repeated_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    rows, summary = prepare(tmp_path, lines(asked("a"), asked("a"), asked("a", id="x"), asked("a", id="x")))
    assert len(rows) == 2
    assert (summary["rows"], summary["prompts"], summary["duplicates"], summary["same_content"]) == (4, 2, 2, 1)


def test_one_id_for_two_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"some\.jsonl:2: the id 'x' was used before"):
        prepare(tmp_path, lines(asked("a", id="x"), asked("b", id="x")))


def tools(parameters: str, kind: str = "function") -> str:
    tool = f'{{"type": "{kind}", "function": {{"name": "f", "parameters": {parameters}}}}}'
    return f'{{"messages": [{{"role": "user", "content": "x"}}], "tools": [{tool}]}}'


def parts(text: str) -> str:
    return f'{{"messages": [{{"role": "user", "content": [{text}]}}]}}'


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"messages": [}', r"some\.jsonl:2: not JSON"),
        ("[1]", r"some\.jsonl:2: a row is an object"),
        ('{"prompt": "x"}', r"some\.jsonl:2: there is no 'messages'; the row has \['prompt'\]"),
        ('{"messages": []}', r"some\.jsonl:2: 'messages' must be a list"),
        ('{"messages": [{"role": "usr", "content": "x"}]}', r"some\.jsonl:2: message 0: role must be one of"),
        ('{"messages": [{"role": ["user"], "content": "x"}]}', r"some\.jsonl:2: message 0: role must be one of"),
        ('{"messages": [{"role": "user", "content": " "}]}', r"some\.jsonl:2: message 0 \(user\) is empty"),
        (parts('{"type": "text", "text": ""}'), r"some\.jsonl:2: message 0 \(user\) is empty"),
        (
            tools('{"type": "object", "not": ' + '{"not": ' * 250 + "{}" + "}" * 251),
            r"some\.jsonl:2: tool 0 \(f\): 'parameters' is not a JSON Schema: it is nested too deeply",
        ),
        (
            tools('{"type": "object", "not": ' + '{"not": ' * 200 + "{}" + "}" * 201),
            r"some\.jsonl:2: tool 0 \(f\): 'parameters' is not a JSON Schema: it is nested too deeply",
        ),
        (
            '{"id": "x", "messages": [{"role": "user", "content": "x", "deep": ' + "[" * 260 + "]" * 260 + "}]}",
            r"some\.jsonl:2: the messages and tools must be JSON",
        ),
        ('{"messages": [{"role": "user"}]}', r"some\.jsonl:2: message 0 \(user\) has no content"),
        (
            '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}',
            r"some\.jsonl:2: the last message is the assistant's",
        ),
        ('{"messages": [{"role": "user", "content": "x"}], "id": "../x"}', r"some\.jsonl:2: 'id' must be"),
        (
            '{"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f"}]}',
            r"some\.jsonl:2: tool 0 must be",
        ),
        ('{"messages": [{"role": "user", "content": "\\ud83d"}]}', r"some\.jsonl:2: not JSON"),
        (
            tools('{"type": "object", "properties": {"x": {"maximum": 18446744073709551616}}}'),
            r"some\.jsonl:2: the number 18446744073709551616 does not fit 64 bits",
        ),
        (tools('{"type": "object", "minimum": -' + "9" * 30 + "}"), r"some\.jsonl:2: the number -999"),
        (
            tools('{"type": "object", "properties": 3}'),
            r"some\.jsonl:2: tool 0 \(f\): 'parameters' is not a JSON Schema: properties: 3 is not of type 'object'",
        ),
        (
            tools('{"type": "strin"}'),
            r"some\.jsonl:2: tool 0 \(f\): 'parameters' must be a JSON Schema of type object; found type \"strin\"",
        ),
        (
            tools('{"properties": {"x": {"type": "strin"}}}'),
            r"some\.jsonl:2: tool 0 \(f\): 'parameters' is not a JSON Schema: properties\.x\.type",
        ),
        (tools('"none"'), r"some\.jsonl:2: tool 0 \(f\): 'parameters' must be a JSON Schema of an object"),
        (
            tools("{}", kind="openrouter:web_search"),
            r"some\.jsonl:2: tool 0 is of type \"openrouter:web_search\"; only functions",
        ),
        (
            parts(
                '{"type": "text", "text": "What is this?"}, '
                '{"type": "image_url", "image_url": {"url": "https://x/y.png"}}'
            ),
            r"some\.jsonl:2: message 0 \(user\): only text",
        ),
        (parts('"bare"'), r"some\.jsonl:2: message 0 \(user\): only text"),
        (
            '{"messages": [{"role": "user", "content": "x", "images": ["a.png"]}]}',
            r"some\.jsonl:2: message 0 \(user\): only text can be asked; found \['images'\]",
        ),
    ],
)
def test_a_malformed_line_is_named_and_nothing_is_written(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        prepare(tmp_path, lines(USER) + line + "\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["some.jsonl"]


def test_text_in_parts_and_tools_with_a_schema_are_asked_as_they_are(tmp_path: Path) -> None:
    text = (
        parts('{"type": "text", "text": "x"}, {"type": "text", "text": "y"}')
        + "\n"
        + tools('{"type": "object", "properties": {"x": {"maximum": 18446744073709551615}}}')
        + "\n"
    )
    rows, _ = prepare(tmp_path, text)
    assert len(rows[0]["messages"][0]["content"]) == 2
    assert rows[1]["tools"][0]["function"]["parameters"]["properties"]["x"]["maximum"] == 2**64 - 1


def test_columns_that_are_not_used_are_counted_and_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, summary = prepare(
        tmp_path, lines(asked("a", tool=[]), asked("b", tool=[], source="x"), asked("c", id="c", tools=None))
    )
    assert summary["unused"] == {"source": 1, "tool": 2}
    assert "of 3 rows these columns are not used: 'source' (in 1), 'tool' (in 2)" in capfd.readouterr().err


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    config = Config.model_validate({"prompts": {"path": str(tmp_path)}, **TARGET, "digest": None})
    with pytest.raises(InputError, match="is a folder"):
        run(config, prompts=tmp_path / "p", summary=tmp_path / "s")


def test_an_empty_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no prompt"):
        prepare(tmp_path, "\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["some.jsonl"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    config = Config.model_validate({"prompts": {"path": str(tmp_path / "no.jsonl")}, **TARGET, "digest": None})
    with pytest.raises(InputError, match=r"no\.jsonl: this file does not exist"):
        run(config, prompts=tmp_path / "p", summary=tmp_path / "s")


def test_a_file_that_changed_since_compose_is_refused(tmp_path: Path) -> None:
    (tmp_path / "some.jsonl").write_text(lines(USER))
    config = Config.model_validate({"prompts": {"path": str(tmp_path / "some.jsonl")}, **TARGET, "digest": "0" * 64})
    with pytest.raises(InputError, match="changed since the configuration was composed"):
        run(config, prompts=tmp_path / "p", summary=tmp_path / "s")


def test_limit_takes_the_first(tmp_path: Path) -> None:
    rows, summary = prepare(tmp_path, lines(*map(asked, "abcd")), limit=2)
    assert [row["messages"][0]["content"] for row in rows] == ["a", "b"]
    assert summary["left_out"] == 2


def test_a_sample_is_the_same_for_the_same_seed_and_keeps_the_order(tmp_path: Path) -> None:
    text = lines(*(asked(str(number)) for number in range(100)))
    first, _ = prepare(tmp_path, text, sample=10, seed=1)
    again, _ = prepare(tmp_path, text, sample=10, seed=1)
    other, _ = prepare(tmp_path, text, sample=10, seed=2)
    assert first == again != other
    taken = [int(row["messages"][0]["content"]) for row in first]
    assert len(taken) == 10
    assert taken == sorted(taken)


@pytest.mark.parametrize(
    ("chat", "row", "words"),
    [
        ("qwen3", {"messages": [{"role": "developer", "content": "x"}, *USER["messages"]]}, "drops the role developer"),
        ("deepseek_v3", {**USER, "tools": [{"type": "function", "function": {"name": "f"}}]}, "renders no tools"),
    ],
)
def test_a_prompt_that_the_targets_template_would_drop_a_part_of_is_refused_before_it_is_paid_for(
    tmp_path: Path, chat: str, row: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=rf"some\.jsonl:2: .*{chat} {words}"):
        prepare(tmp_path, lines(USER, row), chat=chat)
