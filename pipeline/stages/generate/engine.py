"""Asks every unanswered prompt of a dataset: a fixed number of workers, each with one request at a time."""

import asyncio
import random
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from pipeline.core.errors import AerieError, BudgetError, DiskError, ProviderError
from pipeline.core.http import Client, Lost
from pipeline.stages.generate.config import ProviderSection
from pipeline.stages.generate.ledger import ledger
from pipeline.stages.generate.ledger.writer import Settlement, Writer
from pipeline.stages.generate.limits.budget import Budget
from pipeline.stages.generate.limits.free_disk import Room
from pipeline.stages.generate.limits.limiter import Gate
from pipeline.stages.generate.limits.money import Price
from pipeline.stages.generate.limits.retry import Step, Tries, next_step
from pipeline.stages.generate.output.progress import Watch
from pipeline.stages.generate.provider.classify import Outcome, Verdict, generation_id, judge, judge_lost
from pipeline.stages.generate.provider.policy import Admission, other_model, other_provider
from pipeline.stages.generate.provider.rotation import Rotation
from pipeline.stages.generate.requests.request import Ask, Asker, Question

_PATH = "/chat/completions"
_HOPELESS = 25
"""Prompts that may fail for good before the first answer; after them the run stops instead of asking all the others."""


_UNSENT = (0, 0, 0, None, None, "unsent", "the run stopped first", None, None, None, None, None, None, None)
"""Settlement of a request whose row was written and which then was not sent."""


class Ending(StrEnum):
    """Why a run ended."""

    DONE = "done"
    BUDGET = "budget"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Job:
    """What a run asks, of whom, and where it counts."""

    dataset: str
    purse: str
    run: int
    provider: ProviderSection
    asker: Asker
    admission: Admission


class Attempt(NamedTuple):
    """One request, over, and what follows."""

    outcome: Outcome
    tries: Tries
    step: Step
    wait: float
    """Seconds until the prompt may be asked again."""


_ANSWERED = Step(Verdict.ANSWER)

_KEPT = {Verdict.ANSWER: "answer", Verdict.SPOILT: "spoilt"}
"""Verdicts after which a prompt is never asked again, and their names in the ledger."""


class Engine:
    """One run. Everything but the ledger's thread happens on the event loop."""

    def __init__(
        self,
        job: Job,
        *,
        source: Iterator[tuple[str, Question]],
        client: Client,
        writer: Writer,
        budget: Budget,
        room: Room,
        watch: Watch,
        first_attempt: int,
    ) -> None:
        self._job = job
        self._source = source
        self._client = client
        self._writer = writer
        self._budget = budget
        self._room = room
        self._watch = watch
        self._next_attempt = first_attempt
        self._rotation = Rotation(job.asker.template(job.admission), job.admission)
        retry = job.provider.retry
        self._gate = Gate(job.provider.concurrency, breaker=retry.breaker, base=retry.base, longest=retry.max_wait)
        self._traceable = job.provider.kind == "openrouter"
        self._noted: dict[int, str] = {}
        """Ids of answers whose body is still to come."""
        self._judged: dict[str | None, str | None] = {}
        self._workers: list[asyncio.Task[None]] = []
        self.unsaved: dict[str, ledger.Attempt] = {}
        """By key, what came and the ledger had no room for."""
        self.error: AerieError | None = None
        self.ending = Ending.DONE
        self.cap: str | None = None
        """Which cap ended the run."""
        self.cap_fails = False

    async def run(self, workers: int) -> None:
        """Ask until nothing is left, the budget ends, the provider refuses the work, or a signal comes."""
        self._workers = [asyncio.create_task(self._work()) for _ in range(workers)]
        ticker = asyncio.create_task(self._tick())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        try:
            await asyncio.gather(*self._workers, return_exceptions=True)
        finally:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        for task in (*self._workers, ticker):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def _on_signal(self) -> None:
        if self.ending is Ending.INTERRUPTED:
            self._watch.say("generate: aborted; what arrived is kept, what was in flight is booked as uncertain spend")
            for worker in self._workers:
                worker.cancel()
            return
        self.ending = Ending.INTERRUPTED
        self._stop()
        self._watch.say(
            f"generate: stopping; {self._gate.active} answers that are on their way are awaited (once more to abort at once)"
        )

    def _stop(self) -> None:
        """Send nothing more; wake everyone who waits for a turn or for room in the budget."""
        self._gate.stop()
        self._budget.wake()

    def _halt(self, error: AerieError) -> None:
        """End the run for a reason that concerns every prompt; what is in flight still arrives."""
        if self.error is None:
            self.error = error
            if self.ending is Ending.DONE:
                self.ending = Ending.STOPPED
        self._stop()

    async def _tick(self) -> None:
        patience = self._job.provider.retry.patience
        while True:
            await asyncio.sleep(0.5)
            self._watch.in_flight = self._gate.active
            self._watch.tick()
            if (shortage := self._room.shortage(self._budget.in_flight)) is not None:
                self._halt(shortage)
            if time.monotonic() - self._watch.last_answer > patience and not self._gate.stopped:
                waiting = f"; {self._watch.patience()}" if self._watch.waiting else ""
                self._halt(
                    ProviderError(
                        f"{self._job.provider.base_url}: no answer for {patience:g} s (provider.retry.patience){waiting}; what was answered is kept: run again to continue"
                    )
                )

    async def _work(self) -> None:
        try:
            while not self._gate.stopped and (item := next(self._source, None)) is not None:
                await self._settle_prompt(*item)
        except AerieError as error:
            self._halt(error)
        except (
            Exception
        ):  # a fault of ours, or a damaged ledger: end the run with it, not after everything else was asked
            self._stop()
            raise

    async def _settle_prompt(self, key: str, prompt: Question) -> None:
        """Ask one prompt until it is answered, has failed for good, or the run stops."""
        ask = self._job.asker.ask(prompt, key, self._job.admission.price)
        tries = Tries()
        while await self._afford(ask):
            attempt = await self._attempt(ask, tries)
            if attempt is None:
                return
            if attempt.step.verdict is Verdict.ANSWER:
                self._count_answer(attempt.outcome)
                return
            self._count_failure(prompt, attempt.outcome, attempt.step)
            if attempt.step.verdict is not Verdict.RETRY:
                return
            tries = attempt.tries
            await self._wait(attempt)

    async def _wait(self, attempt: Attempt) -> None:
        """Wait before a prompt is asked again, in plain sight: when all others are done, this is what the run waits for."""
        watch = self._watch
        watch.last_failure = attempt.outcome.message or attempt.outcome.kind
        watch.waiting += 1
        try:
            await self._gate.sleep(attempt.wait)
        finally:
            watch.waiting -= 1

    async def _afford(self, ask: Ask) -> bool:
        """Reserve the worst case; wait while what is in flight may still free some; else the budget has ended."""
        while not self._gate.stopped:
            if self._budget.reserve(ask.most_pico, ask.most_tokens):
                return True
            if self._budget.in_flight == 0:
                self._exhausted(ask)
                return False
            await self._budget.settlement()
        return False

    def _exhausted(self, ask: Ask) -> None:
        cap = self._budget.refusal(ask.most_pico, ask.most_tokens)
        assert cap is not None
        self.cap = cap.refuses(ask.most_pico, ask.most_tokens)
        self.cap_fails = cap.section.on_exhausted == "fail"
        if self.ending is Ending.DONE:
            self.ending = Ending.BUDGET
        self._stop()

    async def _attempt(self, ask: Ask, tries: Tries) -> "Attempt | None":
        """Send one request, between two commits: its worst case before, its outcome and bytes after. None when the run stopped before it left.

        The turn at the gate begins when the row is on the disk, and ends when the outcome is: so a kill loses no more answers than may be in flight,
        those that had arrived included.
        """
        job, attempt = self._job, self._next_attempt
        self._next_attempt += 1
        reserved = (ask.most_pico, ask.most_tokens)
        try:
            charged = (0, 0)
            await self._writer.reserve((attempt, ask.key, job.dataset, job.purse, job.run, *reserved, time.time()))
            charged = reserved
            sent = False
            try:
                sent = await self._gate.enter()
            finally:
                if not sent:  # also when aborted while it waited: the writer ends after this
                    charged = (0, 0)
                    unsent = self._writer.settle(Settlement(attempt, "failed", _UNSENT, None))
            if not sent:
                await unsent
                return None
            try:
                sent_at, started = time.time(), time.monotonic()
                outcome, body = await self._exchange(
                    attempt, ask.body(self._rotation.tail(tries.barren, time.monotonic()))
                )
                seconds = time.monotonic() - started
                done = self._consider(outcome, tries)
                charged = _charge(outcome, reserved, self._job.admission.price)
                policy = self._policy(outcome.provider) if outcome.verdict is Verdict.ANSWER else None
                await self._save(ask.key, _settlement(attempt, outcome, charged, policy, body, (sent_at, seconds)))
            finally:
                self._gate.leave()
            self._watch.outside += (policy or other_model(outcome.model, job.provider)) is not None
            self._watch.uncertain_pico += charged[0] if outcome.cost_pico is None else 0
            return done
        finally:
            self._budget.settle(reserved, charged)

    async def _save(self, key: str, settlement: Settlement) -> None:
        """Have it written; what the ledger's disk has no room for may still fit where responses.jsonl goes."""
        try:
            await self._writer.settle(settlement)
        except DiskError:
            if settlement.state in _KEPT.values():
                self.unsaved[key] = settlement.as_attempt()
            raise

    def _consider(self, outcome: Outcome, tries: Tries) -> Attempt:
        """Decide what follows, and slow down or stop at once: before this turn ends, so that nobody else goes first."""
        if outcome.verdict is Verdict.ANSWER:
            return Attempt(outcome, tries, _ANSWERED, 0.0)
        tries = tries.after(outcome, probing=self._gate.probing)
        step = next_step(
            outcome,
            tries,
            self._job.provider.retry,
            random.random(),  # noqa: S311
            elsewhere=self._rotation.leaves(tries.barren),
        )
        if step.verdict is Verdict.STOP:
            self._stop()
        return Attempt(outcome, tries, step, self._slow_down(outcome, step))

    def _policy(self, provider: str | None) -> str | None:
        """Why an answer of that provider lies outside the policy; each name is judged once."""
        if provider not in self._judged:
            self._judged[provider] = other_provider(provider, self._job.provider, self._job.admission.admitted)
        return self._judged[provider]

    async def _exchange(self, attempt: int, body: bytes) -> tuple[Outcome, bytes | None]:
        try:
            reply = await self._client.post(_PATH, body, partial(self._note, attempt) if self._traceable else None)
        except Lost as lost:
            return judge_lost(lost, self._noted.pop(attempt, None)), None
        self._noted.pop(attempt, None)
        self._room.learn(len(reply.body))
        provider = self._job.provider
        outcome = judge(
            reply,
            price=self._job.admission.price,
            errors=provider.errors,
            now=time.time(),
            keeps_account=provider.kind == "openrouter",
        )
        return outcome, reply.body

    def _note(self, attempt: int, headers: Mapping[str, str]) -> None:
        """Keep the id of an answer whose body is still to come, should it never do, or should this process not live to see it."""
        if (generation := generation_id(headers)) is not None:
            self._noted[attempt] = generation
            self._writer.note(attempt, generation)

    def _count_answer(self, outcome: Outcome) -> None:
        self._count_cost(outcome)
        self._watch.answered += 1
        self._watch.last_answer = time.monotonic()
        self._gate.succeeded()

    def _count_cost(self, outcome: Outcome) -> None:
        self._watch.pico += outcome.cost_pico or 0
        self._watch.tokens += outcome.completion_tokens or 0

    def _count_failure(self, prompt: Question, outcome: Outcome, step: Step) -> None:
        """Count a failure; end the run where it concerns every prompt."""
        watch = self._watch
        self._count_cost(outcome)
        if step.verdict is Verdict.RETRY:
            watch.retried += 1
            watch.may_pay_twice += step.may_pay_twice
            return
        watch.failed[outcome.kind] += 1
        if step.verdict is Verdict.STOP:
            error = BudgetError if outcome.kind == "no_credit" else ProviderError
            self._halt(
                error(f"{self._job.provider.model}: {outcome.message}; nothing more is sent, what was answered is kept")
            )
        elif watch.answered == 0 and watch.failed.total() >= _HOPELESS:
            self._halt(
                ProviderError(
                    f"the first {_HOPELESS} prompts all failed, the last one ({prompt.id}) with {outcome.kind}: {outcome.message}"
                )
            )

    def _slow_down(self, outcome: Outcome, step: Step) -> float:
        """Leave the provider alone that asked for it, while others take its requests; or everyone, where it is the only one.

        Give the seconds until this prompt may be asked again.
        """
        if step.cut_wait is not None:
            self._watch.say(
                f"generate: the server asks to wait {step.cut_wait:.0f} s; provider.retry.server_wait lets it have {self._job.provider.retry.server_wait:g}"
            )
        if step.cooldown:
            nobody_for = self._rotation.cool(outcome.provider, step.cooldown, time.monotonic())
            if nobody_for == 0:
                self._gate.alive()
                return random.random() * self._job.provider.retry.base  # noqa: S311
            if outcome.asked_wait is not None:
                self._gate.pause(nobody_for)
        if outcome.crowded:
            self._gate.crowded()
        elif outcome.outage and self._gate.failed():
            self._watch.say(
                f"generate: {self._job.provider.retry.breaker} failures in a row, the last: {outcome.message or outcome.kind}; pausing, then one request at a time"
            )
        elif not outcome.outage:
            self._gate.alive()
        return step.wait


def _charge(outcome: Outcome, reserved: tuple[int, int], price: Price) -> tuple[int, int]:
    """What counts against the caps: what is known, and for what is not, the most that it can be."""
    if outcome.cost_pico == 0 and outcome.verdict is not Verdict.ANSWER:
        return 0, outcome.completion_tokens or 0
    tokens = reserved[1] if outcome.completion_tokens is None else outcome.completion_tokens
    if outcome.cost_pico is not None:
        return outcome.cost_pico, tokens
    # a server may bill more tokens than were asked for, and so more than was reserved
    pico = max(reserved[0], price.cost(outcome.prompt_tokens or 0, outcome.completion_tokens or 0))
    return pico, tokens


def _settlement(
    attempt: int,
    outcome: Outcome,
    charged: tuple[int, int],
    policy: str | None,
    body: bytes | None,
    times: tuple[float, float],
) -> Settlement:
    known = outcome.cost_pico is not None
    state = _KEPT.get(outcome.verdict) or ("failed" if known else "uncertain")
    counts = (outcome.cost_pico, outcome.prompt_tokens, outcome.completion_tokens)
    return Settlement(
        attempt,
        state,
        (
            *charged,
            *counts,
            outcome.kind,
            outcome.message,
            outcome.status,
            outcome.provider,
            outcome.model,
            policy,
            *times,
            outcome.generation,
        ),
        body,
    )
