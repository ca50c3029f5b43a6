"""Continuous batching: one thread steps all running requests together, and starts a waiting one when a row is free."""

import math
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor

from pipeline.standin.model.decoder import LlamaDecoder
from pipeline.standin.model.live_vocabulary import Live
from pipeline.standin.model.llama import Llama
from pipeline.standin.server.sampling import Rule, distribution, draw

_ROWS = 64
_LENGTH = 384
"""Tokens a row, prompt included, unless a request needs more."""
_ROUND = 128
_THREADS = 1
"""The client has the other core; two threads on busy cores wait for each other more than they compute."""
DECIMALS = 4
"""Reported probabilities are rounded to this, so that the batch, which moves a logit by 1e-14, cannot show in them."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to write."""

    prompt: list[int]
    longest: int
    """Most ids to write."""
    end: int
    rule: Rule
    seed: bytes
    """Decides the noise; nothing else does."""
    stopped: Callable[[list[int]], bool]
    """Whether the ids so far hold a stop text."""
    alternatives: int | None = None
    """How many likely ids to report at each position beside the one drawn; None reports no probabilities."""


@dataclass(frozen=True, slots=True)
class Written:
    """What came of it."""

    ids: list[int]
    """Everything drawn, end token included."""
    finish: str
    """`end`, `stop` (a stop text) or `length`."""
    logprobs: list[float]
    """Natural logarithm of each id's probability, before temperature; empty unless asked for."""
    likely: list[list[tuple[int, float]]]
    """Most likely ids at each position; empty unless asked for."""


@dataclass(slots=True)
class _Running:
    job: Job
    future: "Future[Written]"
    noise: Random
    logits: Tensor
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    likely: list[list[tuple[int, float]]] = field(default_factory=list)


class Engine:
    """Writes answers. The same job gives the same ids, whatever else is running."""

    def __init__(self, model: Llama, live: Live) -> None:
        self._model, self._live = model, live
        self._waiting: queue.SimpleQueue[tuple[Job, Future[Written]] | None] = queue.SimpleQueue()
        self._next: tuple[Job, Future[Written]] | None = None
        self._decoder = LlamaDecoder(model, live, _ROWS, _LENGTH)
        self._running: list[_Running] = []
        """In the order of the decoder's rows."""
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> "Future[Written]":
        """Queue a job; its future is done when the answer is."""
        future: Future[Written] = Future()
        self._waiting.put((job, future))
        return future

    def close(self) -> None:
        """Stop after the current step; what is still running gets no answer."""
        self._closed = True
        self._waiting.put(None)
        self._thread.join()

    def _loop(self) -> None:
        torch.set_num_threads(_THREADS)
        try:
            while not self._closed:
                self._admit()
                if self._running:
                    self._step()
        except Exception as error:  # noqa: BLE001 - a thread's boundary: whoever waits must hear of it
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Hand an error to everyone who waits, now and from now on."""
        self._closed = True
        for running in self._running:
            running.future.set_exception(error)
        pending = self._next
        while pending is not None:
            pending[1].set_exception(error)
            pending = self._waiting.get()

    def _admit(self) -> None:
        """Start waiting jobs while rows are free; wait for one when nothing runs."""
        while not self._closed:
            if self._next is None:
                try:
                    self._next = self._waiting.get(block=not self._running)
                except queue.Empty:
                    return
                if self._next is None:
                    return
            job, future = self._next
            if not self._fits(job):
                return
            self._running.append(_Running(job, future, Random(job.seed), self._decoder.start(job.prompt)))  # noqa: S311 - sampling, no secret
            self._next = None

    def _fits(self, job: Job) -> bool:
        """Whether a row is free for the job; when nothing runs, the cache takes the size that the job needs."""
        need = -(-(len(job.prompt) + job.longest) // _ROUND) * _ROUND
        length = max(_LENGTH, need)
        if not self._running and self._decoder.length != length:
            self._decoder = LlamaDecoder(self._model, self._live, max(1, _ROWS * _LENGTH // length), length)
        return need <= self._decoder.length and len(self._running) < self._decoder.rows

    def _step(self) -> None:
        """Draw one id for each running job, finish those that are done, and append the rest."""
        logits = torch.stack([running.logits for running in self._running])
        probabilities = distribution(logits, [running.job.rule for running in self._running], self._live)
        noise = [(running.noise.random(), running.noise.random()) for running in self._running]
        for running, token in zip(self._running, draw(probabilities, noise, self._live), strict=True):
            running.ids.append(token)
            if running.job.alternatives is not None:
                self._report(running, token)
        for row in reversed(range(len(self._running))):
            running = self._running[row]
            if finish := _finished(running):
                self._decoder.drop(row)
                self._running[row] = self._running[-1]
                self._running.pop()
                running.future.set_result(Written(running.ids, finish, running.logprobs, running.likely))
        if self._running:
            after = self._decoder.step([running.ids[-1] for running in self._running])
            for running, of_row in zip(self._running, after, strict=True):
                running.logits = of_row

    def _report(self, running: _Running, token: int) -> None:
        """Note how likely the id drawn was, and which ids were most likely."""
        chances = self._live.counted(running.logits).log_softmax(dim=-1)
        chances[-1] -= math.log(len(self._live.unused))  # of the shared entry, one id's part
        running.logprobs.append(round(float(chances[self._live.place[token]]), DECIMALS))
        top = chances.topk(running.job.alternatives or 0)
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        running.likely.append(
            [
                (int(self._live.ids[place]), round(value, DECIMALS))
                for place, value in pairs
                if place < len(self._live.ids)
            ]
        )


def _finished(running: _Running) -> str | None:
    """Why a job is done, or None."""
    if running.ids[-1] == running.job.end:
        return "end"
    if running.job.stopped(running.ids):
        return "stop"
    return "length" if len(running.ids) >= running.job.longest else None
