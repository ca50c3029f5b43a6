"""100 kills with SIGKILL at random moments, against a server that records each billed request.

    python -m benchmarks.generate_kills [--kills 100] [--in-flight 64] [--seed 0]      about 5 minutes on two idle cores

It counts answers lost after they were in the ledger, damaged ledgers, and requests sent again (at most those in flight
for each kill), and checks that the client's account (spent plus uncertain) is never below the server's. The server
bills a request when it has read it. After a kill its account is read only when it has not changed for a while, since
the killed client's last requests may still be in the server's sockets.
"""

import argparse
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.generate_server import COST, running
from benchmarks.generate_stage import Stage
from benchmarks.results import save

_STILL = 0.1
"""Seconds without a new request after which the server has read everything that was sent; it reads without delay."""


def requests_billed(ledger: Path) -> int:
    """Return the number of requests that the server billed, once it reads no more of them."""
    size = -1
    while size != (size := ledger.stat().st_size):
        time.sleep(_STILL)
    return len(ledger.read_text().splitlines())


def account(store: Path) -> tuple[bool, set[str], float, int]:
    """Return whether the ledger is sound, the answered keys, the dollars charged, and the unanswered requests."""
    with sqlite3.connect(store / "ledger.sqlite") as db:
        sound = db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        keys = {
            row[0]
            for row in db.execute(
                "SELECT a.key FROM attempts AS a JOIN bodies AS b ON b.id = a.result WHERE a.state = 'answer'"
            )
        }
        charged, open_ = db.execute(
            "SELECT coalesce(sum(charge_pico), 0), sum(state IN ('sent', 'uncertain')) FROM attempts"
        ).fetchone()
    return sound, keys, charged / 1e12, open_ or 0


def main() -> None:
    """Kill the stage again and again, check after each kill, and let it finish at the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", nargs=3, default=None)
    options = parser.parse_args()
    if options.one:
        Stage(Path(options.one[0]), options.one[1], int(options.one[2])).run()
        return
    chance, started = random.Random(options.seed), time.monotonic()
    kills = lost = damaged = below = unanswered = most = 0
    prompts = (
        options.kills * options.in_flight * 3
    )  # more than can be answered between two kills, so that every kill hits a running stage
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "billed"
        with running(delay=0.05, spread=0.2, size=2000, ledger=ledger) as url:
            stage = Stage(Path(folder), url, options.in_flight)
            stage.prompts(prompts)
            answered: set[str] = set()
            code = None
            while code != 0:
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.generate_kills",
                    "--one",
                    folder,
                    url,
                    str(options.in_flight),
                ]
                child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                code = _maybe_kill(child, ledger, chance) if kills < options.kills else child.wait()
                kills += code == -9
                if code not in (0, -9):
                    raise SystemExit(f"the stage ended with {code}")
                sound, keys, charged, uncertain = account(Path(folder) / "store")
                requests = requests_billed(ledger)
                damaged += not sound
                lost += len(answered - keys)
                below += charged < requests * COST - 1e-9
                most, unanswered = max(most, requests - len(keys) - unanswered), requests - len(keys)
                answered = keys
        rows = len((stage.build / "responses.jsonl").read_bytes().splitlines())
    figures = {
        "kills": kills,
        "lost_answers": lost,
        "damaged_ledgers": damaged,
        "account_below_the_servers": below,
        "prompts": prompts,
    }
    save(
        "generate_kills",
        {
            **figures,
            "rows": rows,
            "requests": requests,
            "sent_again": unanswered,
            "most_sent_again_after_one_kill": most,
            "uncertain_requests": uncertain,
            "in_flight": options.in_flight,
            "targets": {
                "lost_answers": 0,
                "damaged_ledgers": 0,
                "account_below_the_servers": 0,
                "sent_again": kills * options.in_flight,
                "most_sent_again_after_one_kill": options.in_flight,
            },
            "seconds": round(time.monotonic() - started, 1),
        },
    )


def _maybe_kill(child: "subprocess.Popen[bytes]", ledger: Path, chance: random.Random) -> int:
    """Wait until the stage sends requests, then a random time, then kill it; return its exit code."""
    size = ledger.stat().st_size if ledger.exists() else 0
    while child.poll() is None and (not ledger.exists() or ledger.stat().st_size == size):
        time.sleep(0.005)
    try:
        return child.wait(chance.random() * 0.4)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


if __name__ == "__main__":
    main()
