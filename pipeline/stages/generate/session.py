"""One run on the network: event loop, ledger writer, client and engine, started and ended in order."""

import asyncio
import contextlib
import gc
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.http import Client, require_open_files
from pipeline.stages.generate.config import ProviderSection
from pipeline.stages.generate.engine import AskJob, Ending, Engine, Resources
from pipeline.stages.generate.ledger.connection import FILE, opened
from pipeline.stages.generate.ledger.notes import end_run, start_run
from pipeline.stages.generate.ledger.queries import next_request_id
from pipeline.stages.generate.ledger.records import Charge
from pipeline.stages.generate.ledger.writer import Writer
from pipeline.stages.generate.limits.budget import Budget, Cap
from pipeline.stages.generate.limits.free_disk import FreeDisk
from pipeline.stages.generate.output.outputs import GenerateOutputs
from pipeline.stages.generate.output.progress import RunProgress
from pipeline.stages.generate.output.report import final_table
from pipeline.stages.generate.provider.policy import Admission
from pipeline.stages.generate.provider.server import headers, timeouts
from pipeline.stages.generate.requests.prompt_source import keyed
from pipeline.stages.generate.requests.survey import Survey

__all__ = ["Ending", "Session", "run_session"]


@dataclass(frozen=True, slots=True)
class Session:
    """Everything that a run on the network needs."""

    provider: ProviderSection
    """The section with the address of the running server."""
    outputs: GenerateOutputs
    admission: Admission
    before: Survey
    caps: tuple[Cap, ...]
    excess: Charge
    """Most that the server is known to bill for one request beyond its reservation."""
    folder: Path
    """Folder of the ledger."""


def run_session(session: Session) -> Engine:
    """Ask the new prompts; return the engine with its ending. Everything that was received is in the ledger then.

    Raises:
        AerieError: too few open files are allowed, or the ledger cannot be opened.

    """
    provider, outputs = session.provider, session.outputs
    require_open_files(provider.concurrency)
    run = start_run(outputs.db, outputs.dataset, provider.model)
    job = AskJob(
        outputs.dataset,
        outputs.purse,
        run,
        provider,
        outputs.builder,
        session.admission,
    )
    progress = RunProgress(session.before.prompts, session.before.cached)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with few_collections(), asyncio.Runner(loop_factory=_loop_factory()) as runner:
            engine = runner.run(_run_engine(session, job, progress))
    finally:
        for number, handler in handlers.items():  # the event loop has set the defaults
            signal.signal(number, handler)
    end_run(outputs.db, run)
    _print_final_table(progress, outputs, run)
    return engine


async def _run_engine(session: Session, job: AskJob, progress: RunProgress) -> Engine:
    provider, outputs = session.provider, session.outputs
    assert provider.base_url is not None
    budget = Budget(session.caps, session.excess)
    disk = FreeDisk(session.folder, outputs.builder.most_tokens)
    with opened(session.folder) as db, progress:
        writer = Writer(
            db,
            session.folder / FILE,
            asyncio.get_running_loop(),
            in_flight=provider.concurrency,
            refusal=lambda: disk.shortage(budget.in_flight),
        )
        try:
            async with Client(
                provider.base_url,
                headers=headers(provider),
                timeouts=timeouts(provider),
                connections=provider.concurrency,
            ) as client:
                engine = Engine(
                    job,
                    Resources(client, writer, budget, disk, progress),
                    source=keyed(outputs.prompts, outputs.builder, session.before.asked),
                    first_attempt=next_request_id(outputs.db),
                )
                # some more workers than requests in flight: some write to the disk while the others use the network
                workers = provider.concurrency + provider.concurrency // 8 + 1
                await engine.run(min(workers, session.before.new))
                return engine
        finally:
            await asyncio.to_thread(writer.close)


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Let Python look for reference cycles rarely in the block.

    It would search thousands of live connections again and again, a third of all the work, and find no cycle.
    """
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
    except ImportError:  # not available on every system; the standard loop does the same, but slower
        return None
    factory: type[asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _print_final_table(progress: RunProgress, outputs: GenerateOutputs, run: int) -> None:
    from rich.console import Console

    with contextlib.suppress(OSError):  # as in `runner.tell`
        Console(stderr=True).print(final_table(progress, outputs.db, run, time.monotonic() - progress.started))
