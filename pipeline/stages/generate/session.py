"""One run on the network: an event loop, the ledger's writer, the client and the engine, put together and taken apart in order."""

import asyncio
import contextlib
import gc
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline.core.http import Client, require_open_files
from pipeline.stages.generate.config import BudgetSection, ProviderSection
from pipeline.stages.generate.engine import Ending, Engine, Job
from pipeline.stages.generate.ledger import ledger
from pipeline.stages.generate.ledger.writer import Writer
from pipeline.stages.generate.limits.budget import Budget
from pipeline.stages.generate.limits.free_disk import Room
from pipeline.stages.generate.output.outputs import Outputs
from pipeline.stages.generate.output.progress import Watch
from pipeline.stages.generate.output.report import final_table
from pipeline.stages.generate.provider.policy import Admission
from pipeline.stages.generate.provider.server import headers, timeouts
from pipeline.stages.generate.requests.prompt_source import keyed
from pipeline.stages.generate.requests.survey import Survey

__all__ = ["Ending", "drive"]


def drive(
    provider: ProviderSection,
    outputs: Outputs,
    admission: Admission,
    before: Survey,
    folder: Path,
    *,
    dataset: BudgetSection,
    build: BudgetSection,
) -> Engine:
    """Send what is missing; return how it ended, with everything that arrived in the ledger.

    Raises:
        AerieError: too few open files are allowed, or the ledger cannot be opened.

    """
    require_open_files(provider.concurrency)
    room = Room(folder, outputs.asker.most_tokens)
    db = outputs.db
    (run,) = db.execute(
        "INSERT INTO runs(dataset, provider, started_at) VALUES(?, ?, ?) RETURNING id",
        (outputs.dataset, provider.model, time.time()),
    ).fetchone()
    job = Job(outputs.dataset, outputs.purse, run, provider, outputs.asker, admission)
    spent = outputs.spending()
    watch = Watch(before.prompts, before.cached)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with few_collections(), asyncio.Runner(loop_factory=_loop_factory()) as runner:
            engine = runner.run(_session(job, outputs, folder, Budget(dataset, build, *spent), room, watch, before))
    finally:
        for number, handler in handlers.items():  # the event loop has put the defaults in their place
            signal.signal(number, handler)
    ledger.keep_note(db, "UPDATE runs SET ended_at=? WHERE id=?", (time.time(), run))
    _show(watch, outputs, run)
    return engine


async def _session(
    job: Job, outputs: Outputs, folder: Path, budget: Budget, room: Room, watch: Watch, before: Survey
) -> Engine:
    provider = job.provider
    assert provider.base_url is not None
    with ledger.opened(folder) as db, watch:
        writer = Writer(
            db,
            folder / ledger.FILE,
            asyncio.get_running_loop(),
            in_flight=provider.concurrency,
            refusal=lambda: room.shortage(budget.in_flight),
        )
        try:
            async with Client(
                provider.base_url,
                headers=headers(provider),
                timeouts=timeouts(provider),
                connections=provider.concurrency,
            ) as client:
                source = keyed(outputs.prompts, outputs.asker, before.asked)
                first = ledger.next_attempt(outputs.db)
                engine = Engine(
                    job,
                    source=source,
                    client=client,
                    writer=writer,
                    budget=budget,
                    room=room,
                    watch=watch,
                    first_attempt=first,
                )
                # some more than may be in flight: those write to the disk while others wait for the network
                await engine.run(min(provider.concurrency + provider.concurrency // 8 + 1, before.new))
                return engine
        finally:
            await asyncio.to_thread(writer.close)


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Look for reference cycles seldom: thousands of live connections would be searched through again and again, a third of all the work, and hold none."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    try:
        import uvloop
    except ImportError:  # not there on every system; the standard loop does the same, slower
        return None
    factory: type[asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _show(watch: Watch, outputs: Outputs, run: int) -> None:
    from rich.console import Console

    with contextlib.suppress(OSError):  # as in `runner.tell`
        Console(stderr=True).print(final_table(watch, outputs.db, run, time.monotonic() - watch.started))
