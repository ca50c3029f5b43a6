"""Reported cases of ends and gaps: the files of tests/data/ending_cases, each read as a user's file."""

import pytest

from pipeline.answers.lines import file_job
from pipeline.answers.providers.habits import HabitCounts, learn
from pipeline.answers.rows import PackedRow, RowMaker
from pipeline.answers.segmented_ids import unpack
from tests.answers.build import END, codes
from tests.conftest import ROOT


def rows_of_file(maker: RowMaker, name: str) -> dict[str, PackedRow]:
    lines = (ROOT / "tests/data/ending_cases" / name).read_bytes().splitlines()
    jobs = [file_job(number, line) for number, line in enumerate(lines)]
    seen: dict[str | None, HabitCounts] = {}
    for job in jobs:
        maker.observe(job, seen, 256)
    return {row.id: row for row in maker.rows(jobs, learn(seen))}


def test_a_stop_string_is_not_closed_with_an_end_token(maker: RowMaker) -> None:
    rows = rows_of_file(maker, "stop_string.jsonl")
    stopped = rows.pop("stop1")
    assert stopped.status == "flag"
    assert END not in unpack(stopped.completion)
    assert "stopped_by_string" in codes(stopped)
    assert {row.status for row in rows.values()} == {"accept"}


@pytest.mark.parametrize(("name", "whole"), [("ids_dropped.jsonl", "full"), ("ids_seam_dropped.jsonl", "seam_full")])
def test_ids_fewer_than_billed_are_flagged(maker: RowMaker, name: str, whole: str) -> None:
    rows = rows_of_file(maker, name)
    complete = rows.pop(whole)
    assert (complete.status, complete.evidence) == ("accept", "ids")
    for row in rows.values():
        assert (row.status, row.evidence) == ("flag", "text"), row.id
        assert "ids_incomplete" in codes(row), row.id
