"""The engine of a run: workers with one request at a time ask every unanswered prompt."""

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
from pipeline.stages.generate.ledger.records import (
    NO_CHARGE,
    Charge,
    GenerationRecord,
    LatestAttempt,
    RequestRecord,
    ResultRecord,
    Settlement,
)
from pipeline.stages.generate.ledger.writer import Writer
from pipeline.stages.generate.limits.budget import Budget
from pipeline.stages.generate.limits.free_disk import FreeDisk
from pipeline.stages.generate.limits.limiter import Limiter
from pipeline.stages.generate.limits.money import Price, to_usd
from pipeline.stages.generate.limits.retry import NextStep, Tries, next_step
from pipeline.stages.generate.output.progress import RunProgress
from pipeline.stages.generate.provider.classify import Outcome, Verdict, generation_id, judge, judge_lost
from pipeline.stages.generate.provider.policy import Admission, other_model, other_provider
from pipeline.stages.generate.provider.rotation import Rotation
from pipeline.stages.generate.requests.request import PreparedRequest, PromptRow, RequestBuilder

_PATH = "/chat/completions"

_FAILURES_BEFORE_ANSWER = 25
"""Prompts that may fail for good before the first answer; then the run stops instead of asking all the others."""

_TICK_SECONDS = 0.5


class Ending(StrEnum):
    """Reason why a run ended."""

    DONE = "done"
    BUDGET = "budget"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class AskJob:
    """The questions of a run: which dataset, which provider, and the account that pays."""

    dataset: str
    purse: str
    run: int
    """Id of the run in the ledger."""
    provider: ProviderSection
    builder: RequestBuilder
    admission: Admission


@dataclass(frozen=True, slots=True)
class Resources:
    """The parts that a run works with."""

    client: Client
    writer: Writer
    budget: Budget
    disk: FreeDisk
    progress: RunProgress


class Attempt(NamedTuple):
    """A finished request, and the decision about its prompt."""

    outcome: Outcome
    tries: Tries
    step: NextStep
    wait: float
    """Seconds until the prompt may be asked again."""


class Exchange(NamedTuple):
    """A finished request with its bytes and times."""

    outcome: Outcome
    body: bytes | None
    """None when no whole answer came."""
    sent_at: float
    """Seconds since the epoch."""
    seconds: float


_ANSWERED = NextStep(Verdict.ANSWER)

_FINAL_STATES = {Verdict.ANSWER: "answer", Verdict.SPOILT: "spoilt"}
"""Verdicts after which a prompt is never asked again, and their states in the ledger."""


class Engine:
    """One run. Everything but the ledger's thread happens on the event loop."""

    def __init__(
        self, job: AskJob, resources: Resources, *, source: Iterator[tuple[str, PromptRow]], first_attempt: int
    ) -> None:
        """``source``: the prompts to ask, with their keys; ``first_attempt``: the first unused request id."""
        self._job = job
        self._source = source
        self._client = resources.client
        self._writer = resources.writer
        self._budget = resources.budget
        self._disk = resources.disk
        self._progress = resources.progress
        self._next_attempt = first_attempt
        self._rotation = Rotation(job.builder.template(job.admission), job.admission)
        retry = job.provider.retry
        self._limiter = Limiter(
            job.provider.concurrency, breaker=retry.breaker, base=retry.base, longest=retry.max_wait
        )
        self._traceable = job.provider.kind == "openrouter"
        self._generations: dict[int, str] = {}
        """Attempt to the router's id, while the body is still on its way."""
        self._policy_reasons: dict[str | None, str | None] = {}
        """Provider to why its answers lie outside the policy."""
        self._workers: list[asyncio.Task[None]] = []
        self._told: set[str | None] = set()
        """Providers whose bills beyond a reservation were told of."""
        self.unsaved: dict[str, LatestAttempt] = {}
        """By key, the answers that the ledger could not store."""
        self.error: AerieError | None = None
        self.ending = Ending.DONE
        self.cap: str | None = None
        """Message about the cap that ended the run."""
        self.cap_fails = False

    async def run(self, workers: int) -> None:
        """Ask until no prompt is left, the budget ends, the provider refuses the work, or a signal arrives."""
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
            self._progress.say(
                "generate: aborted; received answers are kept, requests in flight are booked as uncertain spend"
            )
            for worker in self._workers:
                worker.cancel()
            return
        self.ending = Ending.INTERRUPTED
        self._stop()
        self._progress.say(
            f"generate: stopping; waiting for {self._limiter.active} answers in flight (interrupt again to abort)"
        )

    def _stop(self) -> None:
        """Send nothing more; wake everyone who waits for the limiter or the budget."""
        self._limiter.stop()
        self._budget.wake()

    def _halt(self, error: AerieError) -> None:
        """End the run for a reason that concerns every prompt; requests in flight still get their answers."""
        if self.error is None:
            self.error = error
            if self.ending is Ending.DONE:
                self.ending = Ending.STOPPED
        self._stop()

    async def _tick(self) -> None:
        patience = self._job.provider.retry.patience
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self._progress.in_flight = self._limiter.active
            self._progress.tick()
            if (shortage := self._disk.shortage(self._budget.in_flight)) is not None:
                self._halt(shortage)
            if time.monotonic() - self._progress.last_answer > patience and not self._limiter.stopped:
                waiting = f"; {self._progress.waiting_prompts()}" if self._progress.waiting else ""
                self._halt(
                    ProviderError(
                        f"{self._job.provider.base_url}: no answer for {patience:g} s (provider.retry.patience)"
                        f"{waiting}; all answers so far are kept: run again to continue"
                    )
                )

    async def _work(self) -> None:
        try:
            while not self._limiter.stopped and (item := next(self._source, None)) is not None:
                await self._settle_prompt(*item)
        except AerieError as error:
            self._halt(error)
        except Exception:  # a fault of ours, or a damaged ledger: end the run now, not after all other prompts
            self._stop()
            raise

    async def _settle_prompt(self, key: str, prompt: PromptRow) -> None:
        """Ask one prompt until it has an answer, has failed for good, or the run stops."""
        request = self._job.builder.prepare(prompt, key, self._job.admission.price)
        tries = Tries()
        while await self._afford(request.worst_case):
            attempt = await self._attempt(request, tries)
            if attempt is None:
                continue
            if attempt.step.verdict is Verdict.ANSWER:
                self._count_answer(attempt.outcome)
                return
            self._count_failure(prompt, attempt.outcome, attempt.step)
            if attempt.step.verdict is not Verdict.RETRY:
                return
            tries = attempt.tries
            await self._wait(attempt)

    async def _wait(self, attempt: Attempt) -> None:
        """Wait before a prompt is asked again, and show it: once all others are done, the run waits for this alone."""
        progress = self._progress
        progress.last_failure = attempt.outcome.message or attempt.outcome.kind
        progress.waiting += 1
        try:
            await self._limiter.sleep(attempt.wait)
        finally:
            progress.waiting -= 1

    async def _afford(self, worst_case: Charge) -> bool:
        """Reserve the worst case; return False when the budget has ended, or the run stops.

        While requests in flight may still free some of the budget, wait for them.
        """
        while not self._limiter.stopped:
            if self._budget.reserve(worst_case):
                return True
            if self._budget.in_flight == 0:
                self._exhausted(worst_case)
                return False
            await self._budget.settlement()
        return False

    def _exhausted(self, worst_case: Charge) -> None:
        cap = self._budget.passed_cap(worst_case)
        assert cap is not None
        self.cap = self._budget.refusal(worst_case)
        self.cap_fails = cap.section.on_exhausted == "fail"
        if self.ending is Ending.DONE:
            self.ending = Ending.BUDGET
        self._stop()

    async def _attempt(self, request: PreparedRequest, tries: Tries) -> "Attempt | None":
        """Send one request between two commits; return None when it was not sent.

        The first commit holds its worst case, the second its outcome and bytes. The request counts as in flight from
        the first to the second, so a kill loses at most as many answers as may be in flight, received ones included.
        """
        job, number = self._job, self._next_attempt
        self._next_attempt += 1
        reserved = request.worst_case
        charged = NO_CHARGE
        try:
            await self._writer.reserve(
                RequestRecord(
                    id=number,
                    key=request.key,
                    dataset=job.dataset,
                    purse=job.purse,
                    run=job.run,
                    most_pico=reserved.pico,
                    most_tokens=reserved.tokens,
                    written_at=time.time(),
                )
            )
            charged = reserved
            sent = False
            try:
                sent = await self._limiter.enter()
                if sent and self._budget.overdrawn():  # learned since it was reserved: back to the queue
                    self._limiter.leave()
                    sent = False
            finally:
                if not sent:  # also when aborted while it waited: the writer ends after this
                    charged = NO_CHARGE
                    unsent = self._writer.settle(_unsent(number))
            if not sent:
                await unsent
                return None
            try:
                exchange = await self._exchange(
                    number, request.body(self._rotation.tail(tries.barren, time.monotonic()))
                )
                outcome = exchange.outcome
                attempt = self._decide(outcome, tries)
                charged = _charge(outcome, reserved, self._budget.excess, self._job.admission.price)
                self._watch_bill(outcome.provider, reserved, charged)
                policy = self._policy_reason(outcome.provider) if outcome.verdict is Verdict.ANSWER else None
                await self._save(request.key, _settlement(number, exchange, charged, policy))
            finally:
                self._limiter.leave()
            self._progress.outside_policy += (policy or other_model(outcome.model, job.provider)) is not None
            self._progress.uncertain_pico += charged.pico if outcome.cost_pico is None else 0
            return attempt
        finally:
            self._budget.settle(reserved, charged)

    def _watch_bill(self, provider: str | None, reserved: Charge, charged: Charge) -> None:
        """Tell once of a provider that bills more than it was asked for; from then on the caps count with such bills.

        The excess in dollars is at least that of the tokens: a long prompt, whose reservation is generous, may hide it.
        """
        tokens = max(0, charged.tokens - reserved.tokens)
        pico = max(charged.pico - reserved.pico, tokens * self._job.admission.price.completion, 0)
        if not self._budget.learn(Charge(pico, tokens)) or provider in self._told:
            return
        self._told.add(provider)
        name = provider or "the server"
        bill = (
            f"{name} billed {charged.tokens} tokens for a request of at most {reserved.tokens}: it does not obey "
            "max_tokens"
            if tokens
            else f"{name} billed ${to_usd(charged.pico):.6f} for a request of at most ${to_usd(reserved.pico):.6f}: "
            "its prices are above the listed ones"
        )
        others = self._limiter.active - 1
        self._progress.say(
            f"generate: {bill}. From now on each request counts with as much more; the {others} in flight now can "
            "still pass a cap"
        )

    async def _save(self, key: str, settlement: Settlement) -> None:
        """Write a settlement; an answer for which the ledger's disk has no room may still fit in responses.jsonl."""
        try:
            await self._writer.settle(settlement)
        except DiskError:
            if settlement.result.state in _FINAL_STATES.values():
                self.unsaved[key] = settlement.as_latest()
            raise

    def _decide(self, outcome: Outcome, tries: Tries) -> Attempt:
        """Decide what follows, and slow down or stop at once, before this request makes room for another."""
        if outcome.verdict is Verdict.ANSWER:
            return Attempt(outcome, tries, _ANSWERED, 0.0)
        tries = tries.after(outcome, probing=self._limiter.probing)
        step = next_step(
            outcome,
            tries,
            self._job.provider.retry,
            random.random(),  # noqa: S311
            elsewhere=self._rotation.has_others(tries.barren),
        )
        if step.verdict is Verdict.STOP:
            self._stop()
        return Attempt(outcome, tries, step, self._slow_down(outcome, step))

    def _policy_reason(self, provider: str | None) -> str | None:
        """Return why an answer of that provider lies outside the policy, or None; each name is checked once."""
        if provider not in self._policy_reasons:
            self._policy_reasons[provider] = other_provider(provider, self._job.provider, self._job.admission.admitted)
        return self._policy_reasons[provider]

    async def _exchange(self, attempt: int, body: bytes) -> Exchange:
        """Send one request and judge what comes back."""
        sent_at, started = time.time(), time.monotonic()
        on_headers = partial(self._note, attempt) if self._traceable else None
        try:
            reply = await self._client.post(_PATH, body, on_headers)
        except Lost as lost:
            outcome = judge_lost(lost, self._generations.pop(attempt, None))
            return Exchange(outcome, None, sent_at, time.monotonic() - started)
        self._generations.pop(attempt, None)
        self._disk.learn(len(reply.body))
        outcome = judge(
            reply,
            price=self._job.admission.price,
            errors=self._job.provider.errors,
            now=time.time(),
            keeps_account=self._job.provider.kind == "openrouter",
        )
        return Exchange(outcome, reply.body, sent_at, time.monotonic() - started)

    def _note(self, attempt: int, headers: Mapping[str, str]) -> None:
        """Keep the router's id of an answer before its body is there: the body may be lost, or this process killed."""
        if (generation := generation_id(headers)) is not None:
            self._generations[attempt] = generation
            self._writer.note(GenerationRecord(attempt, generation))

    def _count_answer(self, outcome: Outcome) -> None:
        self._count_cost(outcome)
        self._progress.answered += 1
        self._progress.last_answer = time.monotonic()
        self._limiter.succeeded()

    def _count_cost(self, outcome: Outcome) -> None:
        self._progress.pico += outcome.cost_pico or 0
        self._progress.tokens += outcome.completion_tokens or 0

    def _count_failure(self, prompt: PromptRow, outcome: Outcome, step: NextStep) -> None:
        """Count a failure; end the run where it concerns every prompt."""
        progress = self._progress
        self._count_cost(outcome)
        if step.verdict is Verdict.RETRY:
            progress.retried += 1
            progress.may_pay_twice += step.may_pay_twice
            return
        progress.failed[outcome.kind] += 1
        if step.verdict is Verdict.STOP:
            error = BudgetError if outcome.kind == "no_credit" else ProviderError
            self._halt(
                error(
                    f"{self._job.provider.model}: {outcome.message}; nothing more is sent, all answers so far are kept"
                )
            )
        elif progress.answered == 0 and progress.failed.total() >= _FAILURES_BEFORE_ANSWER:
            self._halt(
                ProviderError(
                    f"the first {_FAILURES_BEFORE_ANSWER} prompts all failed, the last one ({prompt.id}) with "
                    f"{outcome.kind}: {outcome.message}"
                )
            )

    def _slow_down(self, outcome: Outcome, step: NextStep) -> float:
        """Slow down as the outcome demands; return the seconds until this prompt may be asked again.

        A provider that asked for a pause is left out while others take its requests. Where it is the only one,
        everyone waits.
        """
        retry = self._job.provider.retry
        if step.cut_wait is not None:
            self._progress.say(
                f"generate: the server asks to wait {step.cut_wait:.0f} s; provider.retry.server_wait allows "
                f"{retry.server_wait:g}"
            )
        if step.cooldown:
            all_wait = self._rotation.cool(outcome.provider, step.cooldown, time.monotonic())
            if all_wait == 0:
                self._limiter.alive()
                return random.random() * retry.base  # noqa: S311
            if outcome.asked_wait is not None:
                self._limiter.pause(all_wait)
        if outcome.crowded:
            self._limiter.overloaded()
        elif outcome.outage and self._limiter.failed():
            self._progress.say(
                f"generate: {retry.breaker} failures in a row, the last: {outcome.message or outcome.kind}; pausing, "
                "then sending one request at a time"
            )
        elif not outcome.outage:
            self._limiter.alive()
        return step.wait


def _charge(outcome: Outcome, reserved: Charge, excess: Charge, price: Price) -> Charge:
    """Return what counts against the caps: the known amounts, and for an unknown one the most that it can be.

    ``excess``: most that the server is known to bill beyond a reservation.
    """
    if outcome.cost_pico == 0 and outcome.verdict is not Verdict.ANSWER:
        return Charge(0, outcome.completion_tokens or 0)
    unknown = Charge(reserved.pico + excess.pico, reserved.tokens + excess.tokens)
    tokens = unknown.tokens if outcome.completion_tokens is None else outcome.completion_tokens
    if outcome.cost_pico is not None:
        return Charge(outcome.cost_pico, tokens)
    # a server may bill more tokens than were asked for, and so more than was reserved
    billed = price.cost(outcome.prompt_tokens or 0, outcome.completion_tokens or 0)
    return Charge(max(reserved.pico if outcome.completion_tokens is not None else unknown.pico, billed), tokens)


def _settlement(attempt: int, exchange: Exchange, charged: Charge, policy: str | None) -> Settlement:
    outcome = exchange.outcome
    unsettled = "uncertain" if outcome.cost_pico is None else "failed"
    result = ResultRecord(
        attempt=attempt,
        state=_FINAL_STATES.get(outcome.verdict, unsettled),
        charge_pico=charged.pico,
        charge_tokens=charged.tokens,
        kind=outcome.kind,
        message=outcome.message,
        cost_pico=outcome.cost_pico,
        prompt_tokens=outcome.prompt_tokens,
        completion_tokens=outcome.completion_tokens,
        status=outcome.status,
        provider=outcome.provider,
        model=outcome.model,
        policy=policy,
        sent_at=exchange.sent_at,
        seconds=exchange.seconds,
        generation=outcome.generation,
    )
    return Settlement(result, exchange.body)


def _unsent(attempt: int) -> Settlement:
    """Return the settlement of a request whose row was written, and which then was not sent."""
    result = ResultRecord(
        attempt=attempt,
        state="failed",
        charge_pico=0,
        charge_tokens=0,
        kind="unsent",
        message="the run stopped first",
        cost_pico=0,
    )
    return Settlement(result, None)
