"""The cost of a lost answer, asked for afterwards."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import ProviderError
from pipeline.core.http import Reply
from pipeline.stages.generate.config import ProviderSection
from pipeline.stages.generate.ledger.connection import FILE, opened
from pipeline.stages.generate.ledger.statements import settle_orphans
from pipeline.stages.generate.limits.money import PICO
from pipeline.stages.generate.provider.settling import SettlingReport, bill_of, settle_uncertain
from tests.conftest import ROOT
from tests.polling import wait_until
from tests.stages.generate.chat_server import ScriptedReply, good
from tests.stages.generate.conftest import Bench

BILL = {
    "id": "gen-7",
    "total_cost": 0.00003,
    "native_tokens_prompt": 10,
    "native_tokens_completion": 5,
    "provider_name": "Alpha",
    "model": "m",
}


def cut(generation: str | None = "gen-7") -> ScriptedReply:
    answer = good()
    return ScriptedReply(body=answer.body, cut=40, headers={"X-Generation-Id": generation} if generation else {})


def settled(bench: Bench) -> SettlingReport:
    with opened(bench.folder / "store") as db:
        return settle_uncertain(db, bench.config().provider)


def test_a_body_cut_short_is_booked_with_what_it_cost(bench: Bench) -> None:
    bench.provider = {"retry": {"repay": 0}}
    bench.server.script = lambda *_: cut()
    bench.ask("a")
    worst = bench.attempts()[0]["charge_pico"]
    assert bench.summary()["uncertain_requests"] == 1
    bench.server.generations = {"gen-7": BILL}
    found = settled(bench)
    assert (found.settled, found.cost_pico, found.charged_pico) == (1, 0.00003 * PICO, worst)
    (row,) = bench.attempts()
    assert (row["state"], row["kind"], row["cost_pico"], row["charge_pico"]) == (
        "failed",
        "cut_short",
        0.00003 * PICO,
        0.00003 * PICO,
    )
    assert (row["prompt_tokens"], row["completion_tokens"], row["charge_tokens"], row["provider"]) == (
        10,
        5,
        5,
        "Alpha",
    )
    assert settled(bench).settled == 0
    bench.server.script = lambda *_: good()
    bench.run()
    assert bench.summary()["cost_usd"] == pytest.approx(0.00005)
    assert bench.summary()["uncertain_requests"] == 0


def test_what_cannot_be_known_stays_as_it_is_and_is_counted(bench: Bench) -> None:
    bench.provider = {"retry": {"repay": 0}, "concurrency": 1}
    answers = {
        "dropped": ScriptedReply(drop=True),
        "anonymous": cut(None),
        "forgotten": cut("gen-8"),
        "odd": cut("gen-9"),
    }
    bench.server.script = lambda text, _: answers[text]
    bench.ask(*answers)
    before = bench.attempts()
    bench.server.generations = {"gen-9": {**BILL, "total_cost": -1}}
    found = settled(bench)
    assert (found.settled, found.untraceable, found.unknown.total(), len(found.unknown)) == (0, 2, 2, 2)
    assert found.untraceable_pico == sum(row["charge_pico"] for row in before[:2])
    assert bench.attempts() == before


def test_an_answer_that_states_no_cost_gets_one(bench: Bench) -> None:
    bench.server.script = lambda *_: ScriptedReply(body=good(cost=None).body, headers={"X-Generation-Id": "gen-7"})
    bench.ask("a")
    assert bench.summary()["uncertain_requests"] == 1
    bench.server.generations = {"gen-7": BILL}
    assert settled(bench).settled == 1
    bench.run()
    assert bench.rows()[0]["cost_usd"] == 0.00003
    assert bench.summary()["uncertain_requests"] == 0
    assert len(bench.server.asked) == 1


def test_an_id_is_on_the_disk_while_its_body_is_still_awaited(bench: Bench) -> None:
    """Killed between the headers and the body, as by a power cut: the id is known all the same."""
    bench.server.script = lambda *_: ScriptedReply(trickle=b" ", headers={"X-Generation-Id": "gen-7"})
    bench.write("a")
    command = [
        sys.executable,
        "-m",
        "tests.stages.generate.child",
        str(bench.folder),
        bench.server.url,
        "4",
        bench.dataset,
    ]
    child = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.DEVNULL, env={**os.environ, "AERIE_STORE": str(bench.folder / "store")}
    )
    wait_until(lambda: len(bench.server.asked) == 1 and bool(_noted(bench.folder / "store" / FILE)))
    child.send_signal(signal.SIGKILL)
    child.wait()
    bench.server.generations = {"gen-7": BILL}
    with opened(bench.folder / "store") as db:
        assert settle_orphans(db) == 1
    assert settled(bench).settled == 1


def _noted(path: Path) -> list[Any]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT generation FROM attempts WHERE generation IS NOT NULL").fetchall()


def test_only_openrouter_can_be_asked(bench: Bench) -> None:
    bench.ask("a")
    with opened(bench.folder / "store") as db, pytest.raises(ProviderError, match="only OpenRouter"):
        settle_uncertain(db, ProviderSection(kind="openai", model="m", base_url=bench.server.url))


def test_a_refused_key_ends_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.provider = {"retry": {"repay": 0}}
    bench.server.script = lambda *_: cut()
    bench.ask("a")
    reply = Reply(401, b"no")
    monkeypatch.setattr("pipeline.core.http.Client.get", lambda *_: _now(reply))
    with pytest.raises(ProviderError, match="refuses the key"):
        settled(bench)


async def _now(reply: Reply) -> Reply:
    return reply


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"data": []}', b'{"data": {"total_cost": "x"}}', b'{"data": {"total_cost": 1e300}}']
)
def test_a_bill_that_is_none(body: bytes) -> None:
    assert bill_of(Reply(200, body)) is None


def test_a_bill_with_a_key_of_ones_own_upstream() -> None:
    found = bill_of(Reply(200, b'{"data": {"total_cost": 0.25, "is_byok": true, "upstream_inference_cost": 1.5}}'))
    assert found is not None
    assert found.cost_pico == 1.75 * PICO
