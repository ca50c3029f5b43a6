"""Kills, signals, a second generator, a dead parent and a full disk, with real processes."""

import dataclasses
import json
import random
import signal
import subprocess
import sys
import threading
from functools import partial
from typing import Any

import pytest

from pipeline.stages.generate.ledger.accounts import charged
from pipeline.stages.generate.ledger.connection import opened
from pipeline.stages.generate.ledger.queries import iterate_answers
from tests.conftest import ROOT
from tests.linux_namespaces import mounting_command
from tests.polling import TIMEOUT_S, is_alive, wait_until
from tests.stages.generate.chat_server import ScriptedReply, good
from tests.stages.generate.conftest import Bench

pytestmark = pytest.mark.slow


def start(
    bench: Bench, *, concurrency: int = 8, before: tuple[str, ...] = (), **changes: Any
) -> "subprocess.Popen[str]":
    command = [
        *before,
        sys.executable,
        "-m",
        "tests.stages.generate.child",
        str(bench.folder),
        bench.server.url,
        str(concurrency),
        bench.dataset,
        json.dumps(changes),
    ]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def wait_for_line(process: "subprocess.Popen[str]", words: str) -> None:
    """Read what a process says until it says this."""
    assert process.stderr is not None
    lines, found = process.stderr, threading.Event()

    def read() -> None:
        if any(words in line for line in lines):
            found.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(TIMEOUT_S)
    assert found.is_set(), f"it ended without a word of {words!r}, or goes on without"


def _asked_or_ended(bench: Bench, before: int, child: "subprocess.Popen[str]") -> bool:
    return len(bench.server.asked) > before or child.poll() is not None


def test_kills_at_random_moments_lose_no_answer_and_book_no_less_than_was_billed(bench: Bench) -> None:
    chance, delays = random.Random(4), random.Random(5)
    kills = 0

    def script(text: str, _nth: int) -> ScriptedReply:
        """The last prompt is not answered before three kills, so that no process ends by itself before."""
        return good(delay=0.02 + delays.random() * 0.05 if text != "79" or kills >= 3 else TIMEOUT_S)

    bench.server.script = script
    bench.write(*map(str, range(80)))
    while True:
        before = len(bench.server.asked)
        child = start(bench)
        try:
            wait_until(partial(_asked_or_ended, bench, before, child))
            child.wait(chance.random() * 0.3)
        except subprocess.TimeoutExpired:
            child.kill()
            kills += 1
        child.communicate()
        with opened(bench.folder / "store", readonly=True) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            booked = charged(db, "real").pico / 1e12
        assert booked >= bench.server.billed - 1e-9
        assert child.returncode in (0, -signal.SIGKILL)
        if child.returncode == 0:
            break
    rows = bench.rows()
    assert kills >= 3
    assert all(row["error"] is None for row in rows)
    assert len(bench.server.asked) - len(rows) <= 8 * kills  # what may be in flight, each time
    assert not list(bench.build.glob(".*"))


def test_an_answer_that_is_in_the_ledger_is_never_asked_for_again(bench: Bench) -> None:
    bench.server.script = lambda text, _: good(delay=0 if int(text) < 20 else 60)
    bench.write(*map(str, range(25)))
    child = start(bench)
    wait_until(
        lambda: len(bench.server.asked) == 25
    )  # by then the ledger is made, and nobody who looks at it is in the way
    wait_until(lambda: sorted(attempt["state"] for attempt in bench.attempts()) == ["answer"] * 20 + ["sent"] * 5)
    child.kill()
    child.communicate()
    bench.server.script = lambda *_: good()
    rows = bench.run()
    assert [row["attempts"] for row in rows] == [1] * 20 + [2] * 5
    assert bench.summary()["uncertain_requests"] == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_and_the_next_run_goes_on(bench: Bench, number: signal.Signals) -> None:
    release = threading.Event()
    bench.server.script = lambda *_: dataclasses.replace(good(), hold=release)
    bench.write(*map(str, range(40)))
    child = start(bench)
    wait_until(lambda: len(bench.server.asked) == 8)
    child.send_signal(number)
    wait_for_line(child, "stopping")
    release.set()
    child.communicate(timeout=TIMEOUT_S)
    assert child.returncode == 130
    assert len(bench.server.asked) == 8
    assert all(attempt["state"] == "answer" or attempt["kind"] == "unsent" for attempt in bench.attempts())
    bench.server.script = lambda *_: good()
    assert all(row["error"] is None for row in bench.run())
    assert len(bench.server.asked) == 40


def test_a_second_signal_aborts_at_once_and_keeps_what_arrived(bench: Bench) -> None:
    bench.server.script = lambda text, _: good(delay=0 if text == "0" else 60)
    bench.write(*map(str, range(8)))
    child = start(bench)
    wait_until(
        lambda: len(bench.server.asked) == 8 and any(attempt["state"] == "answer" for attempt in bench.attempts())
    )
    child.send_signal(signal.SIGINT)
    wait_for_line(child, "stopping")
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=TIMEOUT_S)
    assert child.returncode == 130
    bench.server.script = lambda *_: good()
    rows = bench.run()
    assert [row["attempts"] for row in rows] == [1] + [2] * 7


def test_a_second_generator_waits_for_the_first_or_is_refused(bench: Bench) -> None:
    release = threading.Event()
    bench.server.script = lambda *_: dataclasses.replace(good(), hold=release)
    bench.write("a", "b", "c", "d")
    first = start(bench, concurrency=1)
    wait_until(lambda: len(bench.server.asked) >= 1)
    refused = start(bench, provider={"wait_for_store": False})
    _, said = refused.communicate(timeout=TIMEOUT_S)
    assert refused.returncode == 2
    assert f'"pid":{first.pid}' in said
    waiting = start(bench)
    wait_for_line(waiting, "waiting for the generator")
    release.set()
    waiting.communicate(timeout=TIMEOUT_S)
    first.communicate()
    assert (first.returncode, waiting.returncode) == (0, 0)
    assert len(bench.server.asked) == 4


def test_a_generator_whose_parent_is_killed_stops_sending(bench: Bench) -> None:
    release = threading.Event()
    bench.server.script = lambda text, _: good() if int(text) < 8 else dataclasses.replace(good(), hold=release)
    bench.write(*map(str, range(400)))
    parent_code = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); input()"
    command = [
        sys.executable,
        "-m",
        "tests.stages.generate.child",
        str(bench.folder),
        bench.server.url,
        "4",
        bench.dataset,
    ]
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_code, *command],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    wait_until(lambda: len(bench.server.asked) == 12)
    parent.kill()
    wait_for_line(parent, "stopping")  # the child says it, through the same pipe
    release.set()
    parent.communicate()
    wait_until(lambda: not is_alive(child))
    assert len(bench.server.asked) == 12
    assert all(attempt["state"] in ("answer", "failed") for attempt in bench.attempts())


@pytest.mark.skipif(
    mounting_command("") is None, reason="a small tmpfs needs a mount namespace, which this system does not allow"
)
def test_a_full_disk_is_one_clear_message_and_nothing_is_paid_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.server.script = lambda *_: good("x" * 20_000)
    bench.write(*map(str, range(300)))
    small = bench.folder / "small"
    small.mkdir()
    script = (
        f'mount -t tmpfs -o size=4m none {small} && AERIE_STORE={small} "$@"; code=$?; '
        f"cp {small}/ledger.sqlite* {bench.folder}/ ; exit $code"
    )
    child = start(bench, before=mounting_command(script) or ())
    _, said = child.communicate(timeout=TIMEOUT_S)
    assert child.returncode == 2
    assert "disk" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert not list(bench.build.glob(".*"))
    answers = [row["response"]["choices"][0]["message"]["content"] for row in bench.rows() if row["error"] is None]
    assert 20 < len(answers) < 300
    assert set(answers) == {"x" * 20_000}
    with opened(bench.folder, readonly=True) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert len(list(iterate_answers(db))) == len(answers) == len(bench.server.asked)
    monkeypatch.setenv("AERIE_STORE", str(bench.folder))  # the copy, where there is room
    assert all(row["error"] is None for row in bench.run())
    assert len(bench.server.asked) == 300


def test_the_key_is_written_nowhere(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    key = "sk-or-v1-" + "0123456789abcdef" * 4
    monkeypatch.setenv("SOME_KEY", key)
    bench.provider = {"api_key_env": "SOME_KEY"}
    bench.server.script = lambda text, _: good() if text == "a" else good(delay=0)
    bench.ask("a", "b")
    assert bench.server.headers[0]["authorization"] == f"Bearer {key}"
    found = [path for path in bench.folder.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
    assert found == []
    assert key not in "".join(capfd.readouterr())
