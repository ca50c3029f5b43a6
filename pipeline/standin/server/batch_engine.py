"""Continuous batching: one thread steps all running requests together, and starts a waiting one once a row is free."""

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
from pipeline.standin.model.live_vocabulary import LiveVocabulary
from pipeline.standin.model.llama import Llama
from pipeline.standin.server.sampling import SamplingParameters, distribution, draw

_ROWS = 64
_LENGTH = 384
"""Tokens of a row, prompt included, unless a request needs more."""
_ROUND = 128
"""The length that a request needs is rounded up to a multiple of this."""
_THREADS = 1
"""The client uses the other core; two threads on busy cores wait for each other more than they compute."""
DECIMALS = 4
"""Reported probabilities have this many decimals, so that the batch, which moves a logit by 1e-14, does not show."""


@dataclass(frozen=True, slots=True)
class DecodingJob:
    """One sequence to sample: its prompt, its limits, and the noise."""

    prompt: list[int]
    longest: int
    """Most ids to write."""
    end: int
    """The end token."""
    sampling: SamplingParameters
    seed: bytes
    """The only source of the noise."""
    stopped: Callable[[list[int]], bool]
    """Returns whether the ids so far hold a stop text."""
    alternatives: int | None = None
    """Number of likely ids to report at each position beside the one drawn; None reports no probabilities."""


@dataclass(frozen=True, slots=True)
class SampledSequence:
    """The sequence that a job sampled."""

    ids: list[int]
    """Everything drawn, end token included."""
    finish: str
    """`end`, `stop` (a stop text) or `length`."""
    logprobs: list[float]
    """Natural logarithm of each id's probability, before temperature; empty unless asked for."""
    likely: list[list[tuple[int, float]]]
    """Most likely ids at each position, each with its logarithm; empty unless asked for."""


@dataclass(slots=True)
class _RunningSequence:
    job: DecodingJob
    future: "Future[SampledSequence]"
    noise: Random
    logits: Tensor
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    likely: list[list[tuple[int, float]]] = field(default_factory=list)


class BatchEngine:
    """Samples sequences. The same job gives the same ids, whatever else is running."""

    def __init__(self, model: Llama, live: LiveVocabulary) -> None:
        self._model, self._live = model, live
        self._waiting: queue.SimpleQueue[tuple[DecodingJob, Future[SampledSequence]] | None] = queue.SimpleQueue()
        self._next: tuple[DecodingJob, Future[SampledSequence]] | None = None
        self._decoder = LlamaDecoder(model, live, _ROWS, _LENGTH)
        self._running: list[_RunningSequence] = []
        """In the order of the decoder's rows."""
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    def submit(self, job: DecodingJob) -> "Future[SampledSequence]":
        """Queue a job; its future holds the sampled sequence, or the error that stopped the engine."""
        future: Future[SampledSequence] = Future()
        self._waiting.put((job, future))
        return future

    def close(self) -> None:
        """Stop after the current step; the futures of running and waiting jobs never complete."""
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
        except Exception as error:  # noqa: BLE001 - the thread's boundary: the waiting callers must get the error
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Set an error on every running and waiting job, and on every job submitted later."""
        self._closed = True
        for running in self._running:
            running.future.set_exception(error)
        pending = self._next
        while pending is not None:
            pending[1].set_exception(error)
            pending = self._waiting.get()

    def _admit(self) -> None:
        """Start waiting jobs while rows are free; wait for one if nothing runs."""
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
            noise = Random(job.seed)  # noqa: S311 - sampling, not a secret
            self._running.append(_RunningSequence(job, future, noise, self._decoder.start(job.prompt)))
            self._next = None

    def _fits(self, job: DecodingJob) -> bool:
        """Return whether a row is free for the job; if nothing runs, the cache first takes the size that it needs."""
        need = -(-(len(job.prompt) + job.longest) // _ROUND) * _ROUND
        length = max(_LENGTH, need)
        if not self._running and self._decoder.length != length:
            self._decoder = LlamaDecoder(self._model, self._live, max(1, _ROWS * _LENGTH // length), length)
        return need <= self._decoder.length and len(self._running) < self._decoder.rows

    def _step(self) -> None:
        """Draw one id for each running job, finish the jobs that are done, and step the decoder with the others."""
        logits = torch.stack([running.logits for running in self._running])
        probabilities = distribution(logits, [running.job.sampling for running in self._running], self._live)
        noise = [(running.noise.random(), running.noise.random()) for running in self._running]
        for running, token in zip(self._running, draw(probabilities, noise, self._live), strict=True):
            running.ids.append(token)
            if running.job.alternatives is not None:
                self._report(running, token, running.job.alternatives)
        for row in reversed(range(len(self._running))):
            running = self._running[row]
            if finish := _finished(running):
                self._decoder.drop(row)
                self._running[row] = self._running[-1]
                self._running.pop()
                running.future.set_result(SampledSequence(running.ids, finish, running.logprobs, running.likely))
        if self._running:
            after = self._decoder.step([running.ids[-1] for running in self._running])
            for running, of_row in zip(self._running, after, strict=True):
                running.logits = of_row

    def _report(self, running: _RunningSequence, token: int, alternatives: int) -> None:
        """Record the probability of the drawn id, and the most likely ids."""
        chances = self._live.add_shared_mass(running.logits).log_softmax(dim=-1)
        chances[-1] -= math.log(len(self._live.unused))  # one id's part of the shared entry
        running.logprobs.append(round(float(chances[self._live.place[token]]), DECIMALS))
        top = chances.topk(alternatives)
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        running.likely.append(
            [
                (int(self._live.ids[place]), round(value, DECIMALS))
                for place, value in pairs
                if place < len(self._live.ids)
            ]
        )


def _finished(running: _RunningSequence) -> str | None:
    """Return why a job is done: `end`, `stop` or `length`; None if it is not."""
    if running.ids[-1] == running.job.end:
        return "end"
    if running.job.stopped(running.ids):
        return "stop"
    return "length" if len(running.ids) >= running.job.longest else None
