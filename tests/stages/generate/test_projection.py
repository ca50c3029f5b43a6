"""responses.jsonl written from the ledger and taken into another one, without losing a byte."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.stages.generate.ledger.connection import empty
from pipeline.stages.generate.ledger.records import LatestAttempt
from pipeline.stages.generate.ledger.restore import body_of, restorable_keys
from pipeline.stages.generate.output.projection import line
from pipeline.stages.generate.provider.classify import payload
from pipeline.stages.generate.requests.request import RequestBuilder
from pipeline.stages.generate.requests.survey import survey
from tests.stages.generate.chat_server import ScriptedReply, completion, good
from tests.stages.generate.conftest import Bench

KEY = "0" * 64


def attempt(body: bytes, state: str = "answer") -> LatestAttempt:
    return LatestAttempt(
        id=1,
        state=state,
        kind="ok",
        message=None,
        provider="Alpha",
        model="m",
        policy=None,
        body=body,
        requests=1,
        cost_pico=5,
        uncertain=0,
        uncertain_pico=0,
    )


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.just("response"), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=150)
@given(
    st.dictionaries(st.sampled_from(["usage", "response", "choices", "x"]), json_values),
    st.sampled_from([None, 2]),
    st.booleans(),
)
def test_a_body_comes_back_out_of_its_line(document: dict[str, object], indent: int | None, ascii_only: bool) -> None:
    body = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()
    text = line("p", KEY, attempt(b" \n" + body + b"\n"))
    assert b"\n" not in text
    assert json.loads(text)["response"] == document
    assert body_of(text + b"\n") == payload(body).replace(b"\n", b" ")


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=60))
def test_any_bytes_at_all_make_one_readable_line(body: bytes) -> None:
    text = line("p", KEY, attempt(body, "failed"))
    assert b"\n" not in text
    json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"x",
        b"{}",
        b'{"id": 1, "response": {}}',
        b'{ "id":"p","response":{"a":1}}',
        b'{"error":{"kind":"x"},"response":{}}',
    ],
)
def test_a_line_of_another_program_gives_nothing(text: bytes) -> None:
    assert body_of(text) is None


def test_a_fresh_clone_takes_the_answers_from_the_file_and_pays_nothing(bench: Bench) -> None:
    bench.server.script = lambda text, _: (
        ScriptedReply(400, body=b'{"error": {"message": "no"}}') if text == "bad" else good(text)
    )
    bench.ask("a", "bad", "b")
    before = {path.name: path.read_bytes() for path in bench.build.iterdir()}
    shutil.rmtree(bench.folder / "store")
    bench.run()
    assert bench.server.asked.count("a") == bench.server.asked.count("b") == 1
    assert bench.server.asked.count("bad") == 2  # a failure is no answer, so it is asked again
    assert (bench.build / "responses.jsonl").read_bytes() == before["responses.jsonl"]


def test_a_plan_counts_what_generate_will_take_from_the_file(bench: Bench) -> None:
    bench.server.script = lambda text, _: (
        ScriptedReply(400, body=b'{"error": {"message": "no"}}') if text == "bad" else good(text)
    )
    rows = bench.ask("a", "bad", "b")
    keys = restorable_keys(bench.build / "responses.jsonl")
    assert keys == {rows[0]["key"], rows[2]["key"]}
    config = bench.config()
    builder = RequestBuilder(config.sampling, config.provider, send_tools=config.send_tools, identity=None)
    with empty() as nothing:
        found = survey(bench.build / "prompts.jsonl", builder, nothing, elsewhere=keys)
    assert (found.prompts, found.cached, found.new) == (3, 2, 1)


ODD = [
    ("cost_usd", "1e300"),
    ("cost_usd", "-1"),
    ("cost_usd", "1" + "0" * 40),
    ("cost_usd", '"free"'),
    ("attempts", "1" + "0" * 30),
    ("attempts", "true"),
    ("provider", '{"a": 1}'),
    ("usage", '{"prompt_tokens": 9223372036854775808, "completion_tokens": -3}'),
]


@pytest.mark.parametrize(("name", "value"), ODD)
def test_figures_that_cannot_be_are_told_and_do_not_cost_the_answer(
    bench: Bench, capfd: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    bench.ask("a", "b")
    shutil.rmtree(bench.folder / "store")
    path = bench.build / "responses.jsonl"
    first, second = path.read_bytes().splitlines()
    row = json.loads(first)
    response = row.pop("response")
    head = json.dumps({**row, name: "@"}, separators=(",", ":")).replace('"@"', value).encode()
    odd = orjson.dumps(orjson.loads(head))[:-1]  # as the number is read
    path.write_bytes(odd + b',"response":' + json.dumps(response).encode() + b"}\n" + second + b"\n")
    assert [row["response"] for row in bench.run()] == [completion()] * 2
    assert len(bench.server.asked) == 2
    said = capfd.readouterr().err
    assert "took 2 answers" in said
    if name != "usage":
        assert f"1 figures in it are impossible, and count as unknown; the first: {path}:1: {name}" in said


@pytest.mark.parametrize(
    "spoil",
    [lambda line: line[:40], lambda line: json.dumps(json.loads(line), indent=None).encode(), lambda line: b"[]"],
)
def test_a_line_that_was_edited_is_told_before_it_is_paid_again(
    bench: Bench, capfd: pytest.CaptureFixture[str], spoil: Callable[[bytes], bytes]
) -> None:
    bench.ask("a", "b")
    shutil.rmtree(bench.folder / "store")
    path = bench.build / "responses.jsonl"
    first, second = path.read_bytes().splitlines()
    path.write_bytes(first + b"\n" + spoil(second) + b"\n")
    bench.run()
    assert "1 lines of it, the first" in capfd.readouterr().err
    assert len(bench.server.asked) == 3


def test_a_ledger_that_was_deleted_opens_no_spent_budget(bench: Bench) -> None:
    bench.ask("a")
    shutil.rmtree(bench.folder / "store")
    bench.dataset_budget = {"completion_tokens": 104}
    assert [row["error"] and row["error"]["kind"] for row in bench.ask("a", "b")] == [None, "not_asked"]
    bench.dataset_budget = {"completion_tokens": 105}
    assert [row["error"] for row in bench.ask("a", "b")] == [None, None]


def test_failures_that_were_paid_for_count_after_the_ledger_was_deleted(bench: Bench) -> None:
    bench.provider = {"retry": {"repay": 0}}
    bench.server.script = lambda *_: ScriptedReply(
        body=json.dumps({**completion(), "choices": []}).encode(), billed=0.00002
    )
    for _ in range(2):
        bench.ask("a")
        shutil.rmtree(bench.folder / "store")
    bench.dataset_budget = {"usd": 0}
    bench.run()
    assert bench.summary()["cost_usd"] == pytest.approx(0.00004)
    assert bench.attempts()[0]["charge_pico"] == 40_000_000


def test_going_back_to_an_earlier_configuration_costs_nothing(bench: Bench) -> None:
    first = bench.ask("a")
    bench.sampling = {"temperature": 0.5}
    second = bench.run()
    bench.sampling = {}
    assert bench.run() == first != second
    assert len(bench.server.asked) == 2


def test_same_answers_same_bytes_in_another_clone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.server.script = lambda text, _: good(text, delay=0.01)
    bench.ask(*"abcdef")
    before = {path.name: path.read_bytes() for path in bench.build.iterdir()}
    monkeypatch.setenv("AERIE_STORE", str(bench.folder / "another"))
    shutil.rmtree(bench.build)
    bench.ask(*"abcdef")
    assert len(bench.server.asked) == 12
    changed = {path.name for path in bench.build.iterdir() if path.read_bytes() != before[path.name]}
    assert {"timings.jsonl"} <= changed <= {"timings.jsonl", "timings.json"}  # the clock's, and no other


def test_prompts_with_the_same_content_are_paid_once(bench: Bench) -> None:
    rows = bench.ask("a", "a", "b", "a")
    assert [row["response"] is not None for row in rows] == [True] * 4
    assert sorted(bench.server.asked) == ["a", "b"]
    assert bench.summary()["cost_usd"] == 0.00004


def test_a_damaged_ledger_is_named(bench: Bench, tmp_path: Path) -> None:
    from pipeline.core.errors import ArtifactError, DiskError

    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "ledger.sqlite").write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises((ArtifactError, DiskError), match=r"ledger\.sqlite"):
        bench.ask("a")


def test_a_summary_that_dvc_removed_is_written_again_without_a_request(bench: Bench) -> None:
    bench.ask("a", "b")
    before = (bench.build / "generate.json").read_bytes()
    (bench.build / "generate.json").unlink()
    bench.run()
    assert (bench.build / "generate.json").read_bytes() == before
    assert len(bench.server.asked) == 2
    assert completion()["usage"]["cost"] * 2 == bench.summary()["cost_usd"]
