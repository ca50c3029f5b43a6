"""The work of the stage in one or several processes: the same bytes, and one message when a process dies."""

import json
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pipeline.answers.lines import Job
from pipeline.answers.rows import RowMaker
from pipeline.core.files.tables import read_rows
from pipeline.core.process.exit_codes import guarded
from pipeline.formats.prompt_responses import PromptResponse
from pipeline.formats.schema.target import TargetRecord
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.reconstruct import batches
from pipeline.stages.reconstruct.sources import file_lines, file_to_job
from pipeline.stages.reconstruct.stage import rebuild_file
from tests.answers.build import CLOSE, END, body

IDS = [17285, 9620, 3499, 13, CLOSE, 63494, 13, END]
"""Of "Two plus three." and "Five."."""


@pytest.fixture
def maker(kimi: TargetRecord, tokenizer: Tokenizer) -> RowMaker:
    return RowMaker(kimi, tokenizer, send_tools=True)


def write(path: Path, bodies: list[dict[str, Any]]) -> Path:
    path.write_text(
        "".join(json.dumps({"id": str(number), "response": value}) + "\n" for number, value in enumerate(bodies))
    )
    return path


@pytest.mark.parametrize(("evidence", "more"), [("count", {}), ("ids", {"token_ids": IDS})])
def test_the_table_does_not_depend_on_how_the_work_is_shared(
    evidence: str, more: dict[str, Any], tmp_path: Path, maker: RowMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = Mock(wraps=ProcessPoolExecutor)
    monkeypatch.setattr(batches, "ProcessPoolExecutor", pools)
    bodies = [body("Two plus three.", "Five.", billed=8, **more)] * 600 + [
        body("Two plus three.", text, billed=99) for text in ("<|im_end|>", "[EOS]", "")
    ]
    source, out, written = write(tmp_path / "in.jsonl", bodies), tmp_path / "tokens.parquet", set()
    for workers, room in (
        (1, 0),
        (2, 4 << 20),
        (2, 20_000),
        (3, 100),
    ):  # of the slots: for a whole piece, for its lines alone, for nothing
        monkeypatch.setattr(batches, "SLOT_BYTES", room)
        document = rebuild_file(partial(file_lines, source), file_to_job, maker, out, workers)
        written.add((out.read_bytes(), json.dumps(document)))
    assert len(written) == 1
    assert [call.args[0] for call in pools.call_args_list] == [2, 2, 3]
    assert [row["evidence"] for row in read_rows(out, SCHEMA)][:600] == [evidence] * 600


def test_a_process_that_is_killed_is_one_message(
    tmp_path: Path, maker: RowMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    here, out = os.getpid(), tmp_path / "tokens.parquet"
    source = write(tmp_path / "in.jsonl", [body("Two plus three.", "Five.", billed=8, token_ids=IDS)] * 900)

    def to_job(line: PromptResponse) -> Job:
        if os.getpid() != here and line.number == 500:
            os.kill(os.getpid(), signal.SIGKILL)
        return file_to_job(line)

    def rebuild() -> None:
        rebuild_file(partial(file_lines, source), to_job, maker, out, workers=2)

    assert guarded(rebuild) == 2  # as a stage runs: a handler for SIGTERM must not keep the other process alive
    assert "a worker process died" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [source]


def test_a_provider_of_whom_enough_is_known_is_not_looked_at_again(tmp_path: Path, maker: RowMaker) -> None:
    bodies = [body("Two plus three.", "Five.", billed=8) for _ in range(900)]
    for value in bodies[::3]:
        del value["provider"]
    bodies.append({**bodies[1], "provider": "Late"})
    looked: list[int] = []

    def to_job(line: PromptResponse) -> Job:
        looked.append(line.number)
        return file_to_job(line)

    seen = batches.survey(file_lines(write(tmp_path / "in.jsonl", bodies)), maker, to_job)
    assert {name: counts.rows for name, counts in seen.items()} == {None: 256, "P": 256, "Late": 1}
    assert len(looked) < 700
    assert looked[-1] == 901
