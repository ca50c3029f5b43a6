"""timings.jsonl and timings.json: the only files that depend on the clock."""

import io
import json
import shutil
from array import array
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline.commands.status import show_speed
from pipeline.formats.schema.timings import Timing, TimingsSummary
from pipeline.stages.generate.output.timing import busy, quantile
from tests.stages.generate.chat_server import good
from tests.stages.generate.conftest import Bench


def lines(bench: Bench) -> list[dict[str, Any]]:
    rows = [json.loads(text) for text in (bench.build / "timings.jsonl").read_text().splitlines()]
    assert all(Timing.model_validate(row) for row in rows)
    return rows


def summary(bench: Bench) -> TimingsSummary:
    return TimingsSummary.model_validate_json((bench.build / "timings.json").read_text())


def test_each_answers_time_and_each_providers_quantiles(bench: Bench) -> None:
    bench.server.script = lambda text, _: good(delay=0.3, provider="Beta") if text == "slow" else good(delay=0.05)
    bench.dataset_budget = {"completion_tokens": 305}
    bench.provider = {"concurrency": 3}
    rows = bench.ask("quick", "slow", "quick", "other", *"abc")
    timings = lines(bench)
    assert [(row["id"], row["key"], row["provider"]) for row in timings] == [
        (row["id"], row["key"], row["provider"]) for row in rows
    ]
    assert timings[1]["seconds"] >= 0.3
    assert timings[0]["seconds"] == timings[2]["seconds"]
    found = summary(bench)
    assert (found.answers, found.measured) == (
        bench.summary()["answered"] - 1,
        found.answers,
    )  # two prompts share an answer
    (slow,) = (row["seconds"] for row in timings if row["provider"] == "Beta")
    others = [row["seconds"] for number, row in enumerate(timings) if row["provider"] == "Alpha" and number != 2]
    assert found.by_provider["Beta"].p50_seconds == slow >= 0.3
    assert found.by_provider["Alpha"].p50_seconds == quantile(sorted(others), 0.5) >= 0.05
    assert found.completion_tokens_per_second == pytest.approx(5 * found.measured / found.busy_seconds, rel=0.01)


def test_another_clone_takes_the_times_with_the_answers(bench: Bench) -> None:
    bench.ask("a", "b")
    kept = {
        path: path.read_bytes() for path in bench.build.iterdir() if path.name != "generate.json"
    }  # no list of endpoints: nothing was asked for
    shutil.rmtree(bench.folder / "store")
    bench.run()
    assert {path: path.read_bytes() for path in kept} == kept
    assert len(bench.server.asked) == 2


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("{\n"), lambda path: path.write_text("")])
def test_timings_that_are_missing_or_damaged_cost_nothing_but_the_times(bench: Bench, spoil: Any) -> None:
    bench.ask("a", "b")
    kept = {path.name: path.read_bytes() for path in bench.build.iterdir()}
    spoil(bench.build / "timings.jsonl")
    bench.run()
    assert {path.name: path.read_bytes() for path in bench.build.iterdir()} == kept  # the ledger has them
    shutil.rmtree(bench.folder / "store")
    spoil(bench.build / "timings.jsonl")
    bench.run()
    assert [row["seconds"] for row in lines(bench)] == [None, None]
    assert summary(bench).measured == 0
    assert len(bench.server.asked) == 2


def test_time_between_runs_is_not_busy() -> None:
    assert busy(array("d", [10, 0, 1]), array("d", [1, 3, 1])) == 4
    assert busy(array("d"), array("d")) == 0


def test_a_quantile_is_one_of_the_values() -> None:
    assert [quantile([1.0, 2.0, 3.0, 4.0], share) for share in (0, 0.5, 0.95, 1)] == [1, 3, 4, 4]


def test_status_shows_each_providers_latency(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.server.script = lambda text, _: good(provider="[b]Alpha", delay=0.05)
    bench.ask("a", "b")
    monkeypatch.chdir(bench.folder)
    console = Console(file=io.StringIO(), width=100)
    show_speed(["some", "other"], console)
    assert isinstance(console.file, io.StringIO)
    line = next(text for text in console.file.getvalue().splitlines() if "[b]Alpha" in text)
    assert line.split()[:3] == ["some", "[b]Alpha", "2"]
    assert float(line.split()[3]) >= 0.05
