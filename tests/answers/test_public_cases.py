"""Reported cases of prompts, ends and gaps, read from tests/data/cases/public as `reconstruct` reads a file."""

from collections.abc import Callable

import pytest

from pipeline.answers.lines import file_job
from pipeline.answers.providers.habits import HabitCounts, learn
from pipeline.answers.rows import PackedRow, RowMaker
from pipeline.answers.segmented_ids import unpack
from pipeline.project.targets import open_target
from tests.conftest import DATA

END = 163586
Read = Callable[[str, str], dict[str, PackedRow]]


@pytest.fixture(scope="module")
def read() -> Read:
    makers: dict[str, RowMaker] = {}

    def rows(name: str, target: str = "kimi_k25") -> dict[str, PackedRow]:
        maker = makers.setdefault(target, RowMaker(*open_target(target), send_tools=True))
        lines = (DATA / "cases/public" / f"{name}.jsonl").read_bytes().split(b"\n")
        jobs = [file_job(number, line) for number, line in enumerate(lines, 1) if line]
        counts: dict[str | None, HabitCounts] = {}
        for job in jobs:
            maker.observe(job, counts, 256)
        return {row.id: row for row in maker.rows(jobs, learn(counts))}

    return rows


def test_an_instant_provider_is_read_under_the_closed_prompt(read: Read) -> None:
    rows = read("instant_24", "kimi_k25").values()
    assert len(rows) == 24
    for row in rows:
        assert (row.status, row.evidence, row.prompt_evidence) == ("accept", "count", "count")
        assert "prompt_reading: thinking_off" in row.notes
        assert unpack(row.completion)[-1] == END
        assert 163607 not in unpack(row.completion), "the prompt holds both think tags"
        assert unpack(row.prompt)[-2:] == [163606, 163607]


@pytest.mark.parametrize("name", ["no_section_begin", "no_section_end", "no_markers_but_call"])
def test_fewer_ids_than_billed_are_not_the_whole_answer(read: Read, name: str) -> None:
    rows = read("ids_dropped", "kimi_k25")
    assert (rows["full"].status, rows["full"].evidence) == ("accept", "ids")
    assert rows[name].status == "flag"
    assert rows[name].evidence != "ids"


def test_a_token_that_lacks_at_a_seam_is_a_gap_too(read: Read) -> None:
    rows = read("ids_seam_dropped", "kimi_k25")
    assert rows["seam"].status == "flag"
    assert (rows["seam_full"].status, rows["seam_full"].evidence) == ("accept", "ids")


def test_a_stop_string_is_not_the_end_token(read: Read) -> None:
    rows = read("stop_string", "kimi_k25")
    assert rows["stop1"].status != "accept"
    ended = [row for name, row in rows.items() if name.startswith("eos")]
    assert {(row.status, row.evidence) for row in ended} == {("accept", "count")}


@pytest.mark.parametrize(
    ("name", "target", "row", "says"),
    [
        ("dev_qwen3", "qwen3", "dev", "drops the role developer"),
        ("dev_deepseek", "deepseek_v3", "dev", "drops the role developer"),
        ("tools_deepseek", "deepseek_v3", "tools", "renders no tools"),
    ],
)
def test_what_the_template_would_drop_is_refused(read: Read, name: str, target: str, row: str, says: str) -> None:
    found = read(name, target)[row]
    assert (found.status, found.reason) == ("reject", "prompt_not_rendered")
    assert any(says in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "target", "row", "prompt_tokens"),
    [
        ("nfd_qwen3", "qwen3", "nfd", 23),
        ("midsys_deepseek", "deepseek_v3", "mid", 22),
        ("history_args", "kimi_k25", "args", 104),
        ("history_reasoning", "kimi_k25", "reasoning_content", 96),
        ("history_reasoning", "kimi_k25", "reasoning", 96),
        ("history_reasoning", "kimi_k25", "details", 96),
    ],
)
def test_the_prompt_is_the_one_that_was_billed(
    read: Read, name: str, target: str, row: str, prompt_tokens: int
) -> None:
    found = read(name, target)[row]
    assert len(unpack(found.prompt)) == prompt_tokens
    assert (found.status, found.prompt_evidence, found.prompt_delta) == ("accept", "count", 0)


def test_a_batch_line_is_read_under_its_custom_id(read: Read) -> None:
    assert read("batch_form", "kimi_k25")["p-7"].status == "accept"
