"""A full disk under the ledger: no answer is lost or paid for again."""

import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.core.errors import DiskError
from pipeline.stages.generate.ledger.connection import FILE, opened
from pipeline.stages.generate.ledger.garbage import shrink
from pipeline.stages.generate.ledger.queries import iterate_answers
from pipeline.stages.generate.ledger.writer import QueuedWrite, Writer
from pipeline.stages.generate.limits.free_disk import FreeDisk
from tests.conftest import ROOT
from tests.linux_namespaces import mounting_command
from tests.stages.generate.chat_server import good
from tests.stages.generate.conftest import Bench

LONG = "x" * 20_000


def answered(rows: list[dict[str, Any]]) -> list[str]:
    return [row["response"]["choices"][0]["message"]["content"] for row in rows if row["error"] is None]


def test_the_disk_needs_space_for_the_answers_in_flight_and_for_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FreeDisk(tmp_path, 1000)
    needed = (1 << 17) + 8000
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 * needed))
    assert disk.shortage(3) is None
    (tmp_path / f"{FILE}-wal").write_bytes(b"x")
    assert f"{3 * needed:,} bytes are left on the disk, and the answers in flight may need {3 * needed + 1:,}" in str(
        disk.shortage(3)
    )
    disk.learn(10_000)
    assert f"may need {3 * (needed + 2000) + 1:,}" in str(disk.shortage(3))
    monkeypatch.undo()
    assert "No such file" in str(FreeDisk(tmp_path / "gone", 1000).shortage(1))


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
    """Another program fills the ledger's disk while answers are in flight; responses.jsonl is on another disk."""
    write = Writer._write

    def full(writer: Writer, batch: list[QueuedWrite]) -> None:
        if len(bench.server.asked) >= 6:
            writer._db.execute("PRAGMA max_page_count=1")  # as on a full disk: the file may not grow
        write(writer, batch)

    bench.server.script = lambda *_: good(LONG)
    monkeypatch.setattr(Writer, "_write", full)
    with pytest.raises(
        DiskError,
        match=r"ledger\.sqlite: the ledger cannot be written \(database or disk is full\); "
        r"[\d,]+ bytes are left on its disk",
    ):
        bench.ask(*map(str, range(20)))
    assert len(answered(bench.rows())) == len(bench.server.asked) < 20
    with opened(bench.folder / "store", readonly=True) as db:
        assert len(list(iterate_answers(db))) < len(bench.server.asked)
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
from pipeline.stages.generate.ledger.accounts import charged
from pipeline.stages.generate.ledger.connection import connect, opened

folder = pathlib.Path(sys.argv[1])
connect(folder).close()
subprocess.run("cat /dev/zero > fill", shell=True, cwd=folder, stderr=subprocess.DEVNULL)
for readonly in (False, True):
    with opened(folder, readonly=readonly) as db:
        print(charged(db, "real").pico)
try:
    with opened(folder) as db:
        db.execute("INSERT INTO runs(dataset, provider, started_at) VALUES('a', 'b', zeroblob(100000))")
except DiskError as error:
    print(error)
subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
with opened(folder, readonly=True) as db:
    print(charged(db, "real").pico)
try:
    connect(folder)
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
        "(database or disk is full); 0 bytes are left on its disk: free some space and run again; "
        "all answers so far are kept"
    )
    assert f"check that you may write to {tmp_path}" in forbidden


def test_store_gc_says_what_shrinking_needs() -> None:
    def execute(statement: str, *_: Any) -> Any:
        if statement == "VACUUM":
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return SimpleNamespace(rowcount=0)

    with pytest.raises(
        DiskError,
        match=r"the bodies are dropped, .* \(SQLITE_TMPDIR or TMPDIR\), then beside it \(database or disk is full\)",
    ):
        shrink(SimpleNamespace(execute=execute))  # type: ignore[arg-type]
