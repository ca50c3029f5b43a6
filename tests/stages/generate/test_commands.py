"""plan, providers and store as a user types them, in a repository of their own."""

import base64
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.store import collect, export_answers, import_answers
from pipeline.core.errors import AerieError, ArtifactError, InputError
from pipeline.stages.generate.ledger.connection import FILE, connect, opened
from pipeline.stages.generate.ledger.queries import iterate_answers
from tests.conftest import DEFAULTS, ROOT
from tests.polling import TIMEOUT_S
from tests.stages.generate.chat_server import ChatServer, ScriptedReply, completion, good
from tests.stages.generate.conftest import Bench
from tests.stages.generate.test_ledger import write_second
from tests.workspace import call

pytestmark = pytest.mark.slow


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, ChatServer]]:
    """A folder with this repository's conf/ and data/, pointed at a server on loopback."""
    for name in ("conf", "data"):
        shutil.copytree(DEFAULTS / name, tmp_path / name)
    monkeypatch.setenv("AERIE_STORE", str(tmp_path / "store"))
    with ChatServer() as server:
        overrides = [
            "provider=openrouter",
            f"provider.base_url={server.url}",
            "provider.model=m",
            "provider.api_key_env=null",
        ]
        (tmp_path / "params.yaml").write_text(json.dumps({"datasets": ["reasoning", "code"], "overrides": overrides}))
        yield tmp_path, server


def by_hand(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A command in a process of its own, as a person types it."""
    command = [sys.executable, "-m", "pipeline", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def aerie(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return call(folder, dict(os.environ), *arguments)


def test_plan_says_what_would_be_asked_and_asks_nothing(repository: tuple[Path, ChatServer]) -> None:
    folder, server = repository
    done = by_hand(folder, "plan", "--json")
    assert done.returncode == 0, done.stderr
    plans = json.loads(done.stdout)["datasets"]
    assert [plan["dataset"] for plan in plans] == ["code", "reasoning"]
    for plan in plans:
        assert plan["new"] == plan["prompts"] > 0
        assert 0 < plan["estimated"]["usd"] <= plan["worst_case"]["usd"]
        assert plan["by_provider"]["alpha"]["worst_case_usd"] == plan["worst_case"]["usd"]
    assert server.asked == []
    assert not (folder / "store").exists()


def test_plan_prints_a_table(repository: tuple[Path, ChatServer]) -> None:
    done = aerie(repository[0], "plan", "code")
    assert done.returncode == 0, done.stderr
    assert "code" in done.stdout
    assert "reasoning" not in done.stdout


def test_plan_of_an_unknown_dataset_names_the_known(repository: tuple[Path, ChatServer]) -> None:
    done = aerie(repository[0], "plan", "nothing")
    assert done.returncode == 2
    assert "['code', 'reasoning']" in done.stderr


def test_providers_says_who_is_admitted_and_why_not(repository: tuple[Path, ChatServer]) -> None:
    folder, server = repository
    server.endpoints = [
        *server.endpoints,
        {**server.endpoints[0], "provider_name": "Beta", "tag": "beta", "quantization": "fp4"},
    ]
    done = aerie(folder, "providers", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [endpoint["provider"] for endpoint in found["admitted"]] == ["Alpha"]
    assert found["refused"][0]["why_not"] == ["quantization fp4 is not admitted"]
    assert "Beta" in aerie(folder, "providers").stdout


def test_providers_of_a_server_that_is_down_is_one_message(repository: tuple[Path, ChatServer]) -> None:
    folder, _ = repository
    text = (folder / "params.yaml").read_text()
    (folder / "params.yaml").write_text(text.replace("http://127.0.0.1:", "http://127.0.0.2:"))
    done = by_hand(folder, "providers")
    assert done.returncode == 2
    assert "is the server up" in done.stderr
    assert "Traceback" not in done.stderr


def filled(folder: Path, server: ChatServer) -> Path:
    """Run the stage once, with one answer; give the dataset's folder."""
    bench = Bench(folder, server)
    bench.ask("a")
    return bench.build


def test_store_counts_checks_and_exports_what_was_paid(repository: tuple[Path, ChatServer]) -> None:
    folder, server = repository
    filled(folder, server)
    assert "some" in by_hand(folder, "store", "stats").stdout
    checked = aerie(folder, "store", "verify")
    assert (checked.returncode, checked.stdout) == (0, "1 answers read; 0 faults\n")
    assert aerie(folder, "store", "export", "--out", str(folder / "out.jsonl")).returncode == 0
    (row,) = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert json.loads(base64.b64decode(row["body_base64"])) == completion()


def test_exported_answers_are_imported_elsewhere_counted_and_not_paid_for_again(
    repository: tuple[Path, ChatServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, server = repository
    rows = Bench(folder, server).ask("a", "b")
    aerie(folder, "store", "export", "--out", str(folder / "out.jsonl"))
    monkeypatch.setenv("AERIE_STORE", str(tmp_path / "other" / "store"))
    done = aerie(folder, "store", "import", str(folder / "out.jsonl"))
    assert (done.returncode, done.stdout.split(";")[0]) == (
        0,
        f"2 answers taken from {folder / 'out.jsonl'}, 0 were there already",
    )
    assert "0 answers taken" in aerie(folder, "store", "import", str(folder / "out.jsonl")).stdout
    there = Bench(tmp_path / "other", server)
    assert there.ask("a", "b") == rows
    assert len(server.asked) == 2
    spent = {
        row["key"]: (row["dataset"], row["purse"], row["cost_pico"], row["seconds"]) for row in there.attempts()
    }  # in the order of the answers, not of the requests
    assert spent == {
        row["key"]: ("some", "restored real", row["cost_pico"], row["seconds"])
        for row in Bench(folder, server).attempts()
    }


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sha256": "0" * 64}, "2: the body's digest is .*, the line says 0000000000000000"),
        ({"key": "x"}, "2: not a line of `store export`"),
        ({"body_base64": "?"}, "2: body_base64 is not base64"),
        ({"body_base64": "eA==", "sha256": hashlib.sha256(b"x").hexdigest()}, "2: the body is not an answer"),
        (
            {"body_base64": None, "response": {}},
            "2: not a line of `store export`.*a responses.jsonl belongs in build/<dataset>/",
        ),
    ],
)
def test_a_file_that_is_no_export_is_refused_whole(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    body = json.dumps(completion()).encode()
    line = {
        "key": "a" * 64,
        "sha256": hashlib.sha256(body).hexdigest(),
        "dataset": "d",
        "purse": "real",
        "body_base64": base64.b64encode(body).decode(),
    }
    (tmp_path / "in.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps({**line, 'key': 'b' * 64, **change})}\n")
    with pytest.raises(InputError, match=rf"in.jsonl:{says}.*nothing was taken"):
        import_answers(tmp_path / "store", tmp_path / "in.jsonl")
    with opened(tmp_path / "store", readonly=True) as db:
        assert list(iterate_answers(db)) == []


def test_store_verify_finds_a_changed_answer(repository: tuple[Path, ChatServer]) -> None:
    folder, server = repository
    filled(folder, server)
    with sqlite3.connect(folder / "store" / "ledger.sqlite") as db:
        db.execute("UPDATE bodies SET body = ?", (b"{}",))
    db.close()
    done = aerie(folder, "store", "verify")
    assert done.returncode == 1
    assert "its bytes differ from those that were received" in done.stdout


def test_store_gc_drops_an_answer_only_when_told_twice(repository: tuple[Path, ChatServer]) -> None:
    folder, server = repository
    build = filled(folder, server)
    empty = folder / "none.jsonl"
    empty.write_text("")
    assert "0 answers" in aerie(folder, "store", "gc", "--unlisted", str(build / "responses.jsonl"), "--yes").stdout
    assert "add --yes" in aerie(folder, "store", "gc", "--unlisted", str(empty)).stdout
    assert aerie(folder, "store", "verify").stdout.startswith("1 answers")
    aerie(folder, "store", "gc", "--unlisted", str(empty), "--yes")
    assert aerie(folder, "store", "verify").stdout.startswith("0 answers")


@pytest.mark.parametrize("days", ["-1", "nan", "inf", "many"])
def test_store_gc_wants_an_age(repository: tuple[Path, ChatServer], days: str) -> None:
    done = aerie(repository[0], "store", "gc", f"--days={days}")
    assert done.returncode == 2
    assert "--days" in done.stderr
    assert "Traceback" not in done.stderr


def test_store_export_saves_what_can_be_read_and_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"key": f"{number:064x}", "state": "answer", "cost_pico": 1, "body": b"x" * 3000} for number in range(100)]
    write_second(tmp_path / "store", rows)
    connect(tmp_path / "store").close()
    path = tmp_path / "store" / FILE
    data = bytearray(path.read_bytes())
    at = data.rindex(b"x" * 3000) // 4096 * 4096
    data[at : at + 12] = b"\xff" * 12
    path.write_bytes(bytes(data))
    with opened(tmp_path / "store", readonly=True) as db:
        assert export_answers(db, tmp_path / "out.jsonl") == 1
    assert 90 <= len((tmp_path / "out.jsonl").read_text().splitlines()) < 100
    assert "cannot be read, the first: result" in capsys.readouterr().out
    with (
        pytest.raises(ArtifactError, match=r"store export --out FILE.*move it aside"),
        opened(tmp_path / "store", readonly=True) as db,
    ):
        list(iterate_answers(db))


def test_a_full_disk_behind_the_output_is_one_message() -> None:
    code = "import sys; from pipeline.core.process.exit_codes import guarded; sys.exit(guarded(lambda: print('x')))"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (
        2,
        "error: the output: No space left on device; free some space and run again\n",
    )


def test_a_full_disk_behind_what_people_read_changes_no_exit_code() -> None:
    code = """
import sys
from pipeline.core.errors import InputError
from pipeline.core.process.exit_codes import guarded
def work(): raise InputError('no')
sys.exit(guarded(work))
"""
    with open("/dev/full", "w") as full:
        assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, stderr=full, check=False).returncode == 2


def test_a_full_disk_behind_what_people_read_ends_no_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
    monkeypatch.setattr(sys, "stderr", full)
    assert [row["error"] for row in bench.ask("a", "b")] == [None, None]
    assert bench.summary()["answered"] == 2
    os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # or what is still to be written fails when it is closed
    full.close()


def test_store_gc_drops_nothing_when_a_file_is_wrong(bench: Bench) -> None:
    bench.server.script = lambda text, _: (
        ScriptedReply(400, body=b'{"error": {"message": "no"}}') if text == "bad" else good()
    )
    bench.ask("a", "bad")
    with opened(bench.folder / "store") as db:
        before = db.execute("SELECT count(*) FROM bodies").fetchone()
        for wrong in (bench.folder / "nowhere.jsonl", bench.build / "generate.json"):
            with pytest.raises(AerieError, match=wrong.name):
                collect(db, 0, [bench.build / "responses.jsonl", wrong], really=True)
        assert db.execute("SELECT count(*) FROM bodies").fetchone() == before == (2,)


def test_store_without_a_ledger_says_so(repository: tuple[Path, ChatServer]) -> None:
    done = aerie(repository[0], "store", "stats")
    assert done.returncode == 2
    assert "there is no ledger yet" in done.stderr


def test_store_settle_asks_what_lost_answers_cost(repository: tuple[Path, ChatServer]) -> None:
    folder, server = repository
    assert aerie(folder, "store", "settle").returncode == 2
    build = filled(folder, server)
    assert build.exists()
    with sqlite3.connect(folder / "store" / "ledger.sqlite") as db:
        db.execute("UPDATE results SET state='uncertain', cost_pico=NULL, charge_pico=700000000, generation='gen-7'")
    assert "1 as uncertain as before: not known" in aerie(folder, "store", "settle").stdout
    server.generations = {"gen-7": {"total_cost": 0.0001}}
    done = aerie(folder, "store", "settle")
    assert done.returncode == 0, done.stderr
    assert "1 requests settled: $0.000100 in place of at most $0.000700" in done.stdout
