"""The corpus: its three parts share no prompt, and the files under data/ are equal to its output."""

import itertools
import json
from pathlib import Path

import pytest

from pipeline.standin.corpus.prompt_files import main
from pipeline.standin.corpus.streams import HELDOUT, KINDS, SHIPPED, heldout, prompt_digest, shipped, training
from tests.conftest import DEFAULTS


def test_the_shipped_prompt_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    main([str(tmp_path)])
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["code.jsonl", "heldout.jsonl", "reasoning.jsonl", "tools.jsonl"]
    for name in written:
        assert (tmp_path / name).read_bytes() == (DEFAULTS / "data" / name).read_bytes(), (
            f"data/{name} differs; run `python -m pipeline.standin.corpus.prompt_files data`"
        )


@pytest.mark.parametrize("kind", KINDS)
def test_heldout_shipped_and_training_prompts_share_none(kind: str) -> None:
    parts = [heldout(kind), shipped(kind), list(itertools.islice(training(kind), 2000))]
    digests = [{prompt_digest(conversation) for conversation in part} for part in parts]
    assert [len(part) for part in digests] == [HELDOUT, SHIPPED, 2000]
    assert len(set().union(*digests)) == HELDOUT + SHIPPED + 2000


def test_every_heldout_line_names_its_dataset_and_ids_are_unique() -> None:
    rows = [
        json.loads(line)
        for name in ("heldout", *KINDS)
        for line in (DEFAULTS / "data" / f"{name}.jsonl").read_text().splitlines()
    ]
    assert {row["dataset"] for row in rows[: HELDOUT * len(KINDS)]} == set(KINDS)
    assert len({row["id"] for row in rows}) == len(rows)


def test_tool_conversations_hold_single_calls_pairs_results_and_later_numbers() -> None:
    made = list(itertools.islice(training("tools"), 500))
    assert {len(talk.calls) for talk in made} == {0, 1, 2}
    assert any(message["role"] == "tool" for talk in made for message in talk.messages)
    assert any(call.index == 1 for talk in made if len(talk.calls) == 1 for call in talk.calls)
    for talk in made:
        offered = {tool["function"]["name"] for tool in talk.tools or []}
        assert {call.name for call in talk.calls} <= offered
        assert all(isinstance(json.loads(call.arguments), dict) for call in talk.calls)
