"""A full disk under the ledger: nothing is sent that could not be kept, and what came all the same is kept elsewhere and not paid again."""

import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.commands.store import collect
from pipeline.core.errors import DiskError
from pipeline.stages.generate.ledger import ledger
from pipeline.stages.generate.ledger.writer import Writer
from pipeline.stages.generate.limits.free_disk import Room
from tests.conftest import ROOT
from tests.linux_namespaces import mounting_command
from tests.stages.generate.chat_server import good
from tests.stages.generate.conftest import Bench

LONG = "x" * 20_000


def answered(rows: list[dict[str, Any]]) -> list[str]:
    return [row["response"]["choices"][0]["message"]["content"] for row in rows if row["error"] is None]


def test_room_is_needed_for_what_is_in_flight_and_for_what_a_checkpoint_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(tmp_path, 1000)
    needed = (1 << 17) + 8000
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 * needed))
    assert room.shortage(3) is None
    (tmp_path / f"{ledger.FILE}-wal").write_bytes(b"x")
    assert f"{3 * needed:,} bytes are left on the disk, and what is in flight may need {3 * needed + 1:,}" in str(
        room.shortage(3)
    )
    room.learn(10_000)
    assert f"may need {3 * (needed + 2000) + 1:,}" in str(room.shortage(3))
    monkeypatch.undo()
    assert "No such file" in str(Room(tmp_path / "gone", 1000).shortage(1))


def test_nothing_is_sent_without_room_and_earlier_answers_are_written_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.ask("a")
    (bench.build / "responses.jsonl").unlink()
    usage = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(DiskError, match="store: 1,000 bytes are left on the disk"):
        bench.ask("a", "b")
    assert [(row["error"] or {}).get("kind") for row in bench.rows()] == [None, "not_asked"]
    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert [row["error"] for row in bench.run()] == [None, None]
    assert bench.server.asked == ["a", "b"]


def test_a_disk_that_fills_stops_the_run_while_what_is_in_flight_still_fits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 40 if len(bench.server.asked) < 6 else 1000)
    )
    with pytest.raises(DiskError, match="1,000 bytes are left"):
        bench.ask(*map(str, range(100)))
    assert 6 <= len(bench.server.asked) == len(answered(bench.rows())) < 100
    assert bench.summary()["uncertain_requests"] == 0


def test_what_the_ledger_cannot_take_is_written_out_and_taken_in_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another program fills the disk while answers are on their way, and responses.jsonl lies on another one."""
    write = Writer._write

    def full(writer: Writer, batch: list[Any]) -> None:
        if len(bench.server.asked) >= 6:
            writer._db.execute(
                "PRAGMA max_page_count=1"
            )  # SQLite's own word for a full disk: the file may not grow any more
        write(writer, batch)

    bench.server.script = lambda *_: good(LONG)
    monkeypatch.setattr(Writer, "_write", full)
    with pytest.raises(
        DiskError,
        match=r"ledger\.sqlite: the ledger cannot be written \(database or disk is full\); [\d,]+ bytes are left on its disk",
    ):
        bench.ask(*map(str, range(20)))
    assert len(answered(bench.rows())) == len(bench.server.asked) < 20
    with ledger.opened(bench.folder / "store", readonly=True) as db:
        assert len(list(ledger.iterate_answers(db))) < len(bench.server.asked)
    monkeypatch.setattr(Writer, "_write", write)
    assert answered(bench.run()) == [LONG] * 20
    assert Counter(bench.server.asked).most_common(1)[0][1] == 1


@pytest.mark.slow
@pytest.mark.skipif(
    mounting_command("") is None, reason="a small tmpfs needs a mount namespace, which this system does not allow"
)
def test_a_ledger_is_read_on_a_full_disk_and_on_one_that_takes_nothing(tmp_path: Path) -> None:
    code = """
import pathlib, subprocess, sys
from pipeline.core.errors import DiskError
from pipeline.stages.generate import ledger

folder = pathlib.Path(sys.argv[1])
ledger.connect(folder).close()
subprocess.run("cat /dev/zero > fill", shell=True, cwd=folder, stderr=subprocess.DEVNULL)
for readonly in (False, True):
    with ledger.opened(folder, readonly=readonly) as db:
        print(ledger.spending(db, "real").pico)
try:
    with ledger.opened(folder) as db:
        db.execute("INSERT INTO runs(dataset, provider, started_at) VALUES('a', 'b', zeroblob(100000))")
except DiskError as error:
    print(error)
subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
with ledger.opened(folder, readonly=True) as db:
    print(ledger.spending(db, "real").pico)
try:
    ledger.connect(folder)
except DiskError as error:
    print(error)
"""
    command = mounting_command(f'mount -t tmpfs -o size=512k none {tmp_path} && "$@"') or ()
    done = subprocess.run(
        [*command, sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *read, full, again, forbidden = done.stdout.splitlines()
    assert [*read, again] == ["0", "0", "0"]
    assert full.endswith(
        "(database or disk is full); 0 bytes are left on its disk: free some space and run again: what was answered so far is kept"
    )
    assert f"see that you may write to {tmp_path}" in forbidden


def test_store_gc_says_what_shrinking_needs() -> None:
    def execute(statement: str, *_: Any) -> Any:
        if statement == "VACUUM":
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return SimpleNamespace(rowcount=0)

    with pytest.raises(
        DiskError,
        match=r"what was to go is dropped, .* \(SQLITE_TMPDIR or TMPDIR\), then beside it \(database or disk is full\)",
    ):
        collect(SimpleNamespace(execute=execute), 1.0, None, really=False)  # type: ignore[arg-type]
