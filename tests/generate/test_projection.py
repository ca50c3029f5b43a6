"""responses.jsonl out of the ledger and back into another one, without a byte lost."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.generate.judge import payload
from pipeline.generate.ledger import Attempt
from pipeline.generate.projection import body_of, line
from tests.generate.chat_server import Answer, completion, good
from tests.generate.conftest import Bench

KEY = "0" * 64


def attempt(body: bytes, state: str = "answer") -> Attempt:
    return Attempt(1, state, "ok", None, "Alpha", "m", None, body, 1, 5, 0, 0)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.just("response"), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from(["usage", "response", "choices", "x"]), json_values), st.sampled_from([None, 2]), st.booleans())
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


@pytest.mark.parametrize("text", [b"", b"x", b"{}", b'{"id": 1, "response": {}}', b'{ "id":"p","response":{"a":1}}', b'{"error":{"kind":"x"},"response":{}}'])
def test_a_line_of_another_program_gives_nothing(text: bytes) -> None:
    assert body_of(text) is None


def test_a_fresh_clone_takes_the_answers_from_the_file_and_pays_nothing(bench: Bench) -> None:
    bench.server.script = lambda text, _: Answer(400, body=b'{"error": {"message": "no"}}') if text == "bad" else good(text)
    bench.ask("a", "bad", "b")
    before = {path.name: path.read_bytes() for path in bench.build.iterdir()}
    shutil.rmtree(bench.folder / "store")
    bench.run()
    assert bench.server.asked.count("a") == bench.server.asked.count("b") == 1
    assert bench.server.asked.count("bad") == 2  # a failure is no answer, so it is asked again
    assert (bench.build / "responses.jsonl").read_bytes() == before["responses.jsonl"]


def test_restored_answers_do_not_count_against_this_clones_caps(bench: Bench) -> None:
    bench.ask("a")
    shutil.rmtree(bench.folder / "store")
    bench.dataset_budget = {"completion_tokens": 100}
    assert [row["error"] for row in bench.ask("a", "b")] == [None, None]


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
    assert {path.name: path.read_bytes() for path in bench.build.iterdir()} == before


def test_prompts_with_the_same_content_are_paid_once(bench: Bench) -> None:
    rows = bench.ask("a", "a", "b", "a")
    assert [row["response"] is not None for row in rows] == [True] * 4
    assert sorted(bench.server.asked) == ["a", "b"]
    assert bench.summary()["cost_usd"] == 0.00004


def test_a_damaged_ledger_is_named(bench: Bench, tmp_path: Path) -> None:
    from pipeline.errors import ArtifactError, DiskError

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
