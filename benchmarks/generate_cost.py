"""Client cost of `generate` at 2,000 requests in flight, beside minimal loops over the same transport.

    python -m benchmarks.generate_cost [--requests 20000] [--in-flight 2000] [--rounds 3]    5 minutes on two idle cores

The kinds run in turns, each in its own process. Figures are the CPU seconds of all threads for each response, and the
peak resident memory. `client` is the engine's client (pipeline/core/http.py) in a bare loop, which separates it from
the rest of the stage. The bare loops are written in the ordinary way and keep Python's default garbage collection; the
stage tunes it for thousands of connections.
"""

import argparse
import asyncio
import importlib
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from benchmarks.generate_server import running
from benchmarks.results import in_a_process, save

KINDS = ("aiohttp", "httpx", "client", "aerie")
TARGETS = {"to_httpx": 1.3, "to_aiohttp": 1.5}
PARTS: dict[str, float] = {}
"""CPU seconds of the stage's parts in this process."""

BODY = json.dumps(
    {"model": "m", "temperature": 1.0, "max_tokens": 4000, "messages": [{"role": "user", "content": "How many? " * 40}]}
).encode()


async def bare_aiohttp(url: str, requests: int, in_flight: int) -> None:
    """Post and read with aiohttp; keep nothing."""
    import aiohttp

    left = iter(range(requests))
    headers = {"content-type": "application/json"}
    connector = aiohttp.TCPConnector(limit=in_flight)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=900)) as session:

        async def work() -> None:
            for _ in left:
                async with session.post(url + "/chat/completions", data=BODY, headers=headers) as answer:
                    await answer.read()

        await asyncio.gather(*(work() for _ in range(in_flight)))


async def bare_httpx(url: str, requests: int, in_flight: int) -> None:
    """Post and read with httpx over its aiohttp transport; keep nothing."""
    import httpx
    from httpx_aiohttp import AiohttpTransport

    left = iter(range(requests))
    headers = {"content-type": "application/json"}
    transport = AiohttpTransport(limits=httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight))
    async with httpx.AsyncClient(transport=transport, timeout=900) as client:

        async def work() -> None:
            for _ in left:
                answer = await client.post(url + "/chat/completions", content=BODY, headers=headers)
                await answer.aread()

        await asyncio.gather(*(work() for _ in range(in_flight)))


async def bare_client(url: str, requests: int, in_flight: int) -> None:
    """Post and read with the engine's client; keep nothing."""
    from pipeline.core.http import Client, Timeouts
    from pipeline.stages.generate.session import few_collections

    left = iter(range(requests))
    with few_collections():
        async with Client(url, headers={}, timeouts=Timeouts(60, 120, 900), connections=in_flight) as client:

            async def work() -> None:
                for _ in left:
                    await client.post("/chat/completions", BODY)

            await asyncio.gather(*(work() for _ in range(in_flight)))


LOOPS = {"aiohttp": bare_aiohttp, "httpx": bare_httpx, "client": bare_client}


def timed(name: str, function: Callable[..., Any], clock: Callable[[], float]) -> Callable[..., Any]:
    """Return the function wrapped so that its CPU seconds are added to `PARTS`."""

    def run(*arguments: Any, **named: Any) -> Any:
        started = clock()
        try:
            return function(*arguments, **named)
        finally:
            PARTS[name] = PARTS.get(name, 0.0) + clock() - started

    return run


def prepared(kind: str, folder: Path, url: str, requests: int, in_flight: int) -> Callable[[], Any]:
    """Return the function to measure, with its modules imported and the prompts written, which cost no response."""
    if kind == "aerie":
        from benchmarks.generate_stage import Stage

        for module, owner, function, name, clock in (
            ("pipeline.stages.generate.session", "Writer", "_work", "ledger", time.thread_time),
            ("pipeline.stages.generate.output.outputs", "Outputs", "write", "responses.jsonl", time.process_time),
            ("pipeline.stages.generate.stage", "", "survey", "survey", time.process_time),
        ):
            place: Any = importlib.import_module(module)
            place = getattr(place, owner) if owner else place
            setattr(place, function, timed(name, getattr(place, function), clock))

        stage = Stage(folder, url, in_flight)
        stage.prompts(requests)
        return stage.run  # the whole stage: it reads prompts, writes the ledger and projects responses.jsonl
    import httpx_aiohttp  # noqa: F401

    import pipeline.stages.generate.session  # noqa: F401

    return lambda: uvloop.run(LOOPS[kind](url, requests, in_flight))


def measure_here(kind: str, url: str, requests: int, in_flight: int) -> None:
    """Do one measurement in this process; print its CPU seconds and memory."""
    with tempfile.TemporaryDirectory() as folder:
        ask = prepared(kind, Path(folder), url, requests, in_flight)
        before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        ask()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = time.perf_counter() - started
    print(
        json.dumps(
            {
                "cpu_ms": cpu / requests * 1e3,
                "seconds": seconds,
                "per_second": requests / seconds,
                "rss_mib": after.ru_maxrss / 1024,
                **{name: spent / requests * 1e3 for name, spent in PARTS.items()},
            }
        )
    )


def measure(kind: str, url: str, requests: int, in_flight: int) -> dict[str, float]:
    """Do one measurement in its own process."""
    return in_a_process("benchmarks.generate_cost", kind, url, str(requests), str(in_flight))


def main() -> None:
    """Measure all kinds in turns, and save the medians and ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=20000)
    parser.add_argument("--in-flight", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=4, default=None)
    options = parser.parse_args()
    if options.one:
        measure_here(options.one[0], options.one[1], int(options.one[2]), int(options.one[3]))
        return
    rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with running(delay=1.0, spread=1.0, size=4000) as url:
        for _ in range(options.rounds):
            for kind in KINDS:
                rounds[kind].append(measure(kind, url, options.requests, options.in_flight))
                print(kind, rounds[kind][-1], flush=True)
    typical: dict[str, Any] = {
        kind: {name: median(one[name] for one in runs) for name in runs[0]} for kind, runs in rounds.items()
    }
    cpu = {kind: figures["cpu_ms"] for kind, figures in typical.items()}
    ratios = {
        "to_httpx": cpu["aerie"] / cpu["httpx"],
        "to_aiohttp": cpu["aerie"] / cpu["aiohttp"],
        "client_to_aiohttp": cpu["client"] / cpu["aiohttp"],
    }
    parts = {
        "client": cpu["client"],
        **{name: typical["aerie"][name] for name in ("ledger", "responses.jsonl", "survey")},
    }
    parts["engine"] = cpu["aerie"] - sum(parts.values())  # scheduling, budget, judging
    figures = {"medians": typical, "ratios": ratios, "targets": TARGETS, "cpu_ms_by_part": parts}
    save(
        "generate_cost", {"requests": options.requests, "in_flight": options.in_flight, "answer_bytes": 4000, **figures}
    )


if __name__ == "__main__":
    main()
