"""The backends that are servers: bounded concurrency, retries by kind of failure, and nothing stored that was not checked.

Answers are asked for ahead and handed on in order. A server that fails and comes back is asked again who it is before it is asked for states.
"""

import asyncio
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import orjson
import torch

from pipeline.core.errors import EngineError
from pipeline.core.http import Client, Lost, Timeouts
from pipeline.model.weights.devices import DTYPES
from pipeline.model.weights.ends import open_ends
from pipeline.model.weights.source import find_source
from pipeline.model.weights.target import Target, open_shape
from pipeline.stages.extract.backend import States
from pipeline.stages.extract.config import EngineSection, ExtractSection
from pipeline.stages.extract.engines.dialect import Again, Answer, Dialect, Served, Wanted, check_answer
from pipeline.stages.extract.engines.head_check import check_last
from pipeline.stages.extract.engines.sglang import Sglang
from pipeline.stages.extract.engines.vllm import Vllm
from pipeline.stages.extract.plan import Row

_DIALECTS: dict[str, type[Vllm] | type[Sglang]] = {"vllm": Vllm, "sglang": Sglang}
_CONNECT = 10.0
_NUMBER_BYTES = 26
"""Of one number in JSON at most."""
_SLACK = 1 << 20
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may well succeed."""
_PARTS = (4, 3, 2, 1)
"""Quarters of the probe row at whose end the last state is compared with the token that the engine writes."""


class ServerBackend:
    """Asks a serving engine for the states of one row at a time."""

    padded = False
    by_row = True

    def __init__(self, settings: ExtractSection, engine: EngineSection, model: Path, layer_ids: list[int]) -> None:
        """Look at the target's shape and ask the server who it is.

        Raises:
            EngineError: it cannot be reached, serves something else, or is launched otherwise than needed.

        """
        self._settings, self._engine, self._model = settings, engine, model
        self._target = open_shape(find_source(model))
        self._layer_ids, self._last_id = layer_ids, self._target.num_layers
        ids = tuple(sorted({*layer_ids, self._last_id}))
        self._wanted = Wanted(
            engine.model or self._target.source.name, ids, self._target.hidden_size, DTYPES[settings.compute_dtype]
        )
        self._dialect: Dialect = _DIALECTS[settings.backend](engine, self._wanted)
        self._headers = _key(engine)
        self._served = asyncio.run(self._first_look())
        self.engine = self._served.engine

    def start(self, probe: Row | None) -> Target:
        """Check on ``probe``, and on beginnings of it, that the last state is what the target's head reads.

        Raises:
            EngineError: it is not, or an answer is not what was asked for.

        """
        if probe is not None:
            length = len(probe.token_ids)
            cuts = sorted({max(1, length * part // 4) for part in _PARTS})
            rows = [
                replace(probe, id=f"{probe.id} (its first {cut} tokens)", token_ids=probe.token_ids[:cut])
                for cut in cuts
            ]
            answers = asyncio.run(self._ask_all(rows))
            check_last(
                open_ends(self._model, dtype=DTYPES[self._settings.compute_dtype]),
                [(a.states[:, -1], a.next_id) for a in answers],
                self._engine.url,
            )
        return self._target

    def states(self, batches: Iterable[list[Row]]) -> Iterator[States]:
        """States of each batch, in order; rows of later batches are asked for meanwhile."""
        # a loop of our own: asyncio.Runner writes out every pending result, tensors and all, each time it looks at the signal handlers
        loop = asyncio.new_event_loop()
        gate = asyncio.Semaphore(self._engine.concurrency)
        client = loop.run_until_complete(self._client())
        ahead: deque[list[asyncio.Task[Answer]]] = deque()
        source = iter(batches)
        try:
            while True:
                while sum(map(len, ahead)) < 2 * self._engine.concurrency and (rows := next(source, None)) is not None:
                    ahead.append([loop.create_task(self._ask(client, gate, row)) for row in rows])
                if not ahead:
                    return
                yield self._joined(loop.run_until_complete(_all(ahead[0])))
                ahead.popleft()
        finally:
            loop.run_until_complete(_stop([task for tasks in ahead for task in tasks]))
            loop.run_until_complete(client.__aexit__(None, None, None))
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    def _joined(self, answers: list[Answer]) -> States:
        whole = torch.cat([answer.states for answer in answers])
        places = [self._wanted.layer_ids.index(number) for number in self._layer_ids]
        return States(whole[:, places].flatten(1), whole[:, -1])

    async def _client(self) -> Client:
        timeouts = Timeouts(min(_CONNECT, self._engine.timeout), self._engine.timeout, self._engine.timeout)
        # the longest row's states as JSON text; vLLM's answers hold only ids
        most = (
            self._settings.max_length * len(self._wanted.layer_ids) * self._wanted.hidden_size * _NUMBER_BYTES + _SLACK
        )
        return Client(
            self._engine.url,
            headers=self._headers,
            timeouts=timeouts,
            connections=self._engine.concurrency,
            max_body=most,
        )

    async def _first_look(self) -> Served:
        async with await self._client() as client:
            try:
                served = await self._identify(client)
            except Again as error:
                raise EngineError(
                    f"{error}; is the server up, and engine.url right? docs/extract-servers.md has the launch command"
                ) from None
        if self._wanted.model not in served.models:
            raise EngineError(
                f"{self._engine.url}: serves {' alias '.join(sorted(set(served.models)))}; the target is {self._wanted.model}: "
                "another model's states would train nothing. If it is the same under another name, set engine.model to that name"
            )
        return served

    async def _identify(self, client: Client) -> Served:
        async def get(path: str) -> bytes | None:
            try:
                reply = await client.get(path)
            except Lost as error:
                raise Again(f"{self._engine.url}{path}: {error.kind}: {error}") from None
            if reply.status in (401, 403):
                raise EngineError(
                    f"{self._engine.url}{path}: HTTP {reply.status}: the server wants a key: name its variable in engine.api_key_env"
                )
            if reply.status in _LATER:
                raise Again(f"{self._engine.url}{path}: HTTP {reply.status}")
            return reply.body if reply.status == 200 else None

        return await self._dialect.identify(get)

    async def _ask_all(self, rows: list[Row]) -> list[Answer]:
        gate = asyncio.Semaphore(self._engine.concurrency)
        async with await self._client() as client:
            return [await self._ask(client, gate, row) for row in rows]

    async def _ask(self, client: Client, gate: asyncio.Semaphore, row: Row) -> Answer:
        """Ask for one row until there is an answer, and check it."""
        most = self._served.max_length
        if most is not None and len(row.token_ids) + 1 > most:
            raise EngineError(
                f"{self._engine.url}: row {row.id!r} has {len(row.token_ids)} tokens; the server takes {most - 1} and writes one: raise its context length, "
                "or lower extract.max_length"
            )
        failed = ""
        for attempt in range(self._engine.attempts):
            if attempt:
                await asyncio.sleep(min(self._engine.max_wait, 0.5 * 2.0 ** (attempt - 1)))
            try:
                async with gate:
                    if attempt and (now := await self._identify(client)) != self._served:
                        raise EngineError(
                            f"{self._engine.url}: was {self._served}, and is {now} since it came back: run again, so that no row is mixed"
                        )
                    answer = await self._once(client, row)
            except Again as error:
                failed = str(error)
                continue
            check_answer(row, answer, self._wanted, caching=self._served.caching, where=self._engine.url)
            return answer
        raise EngineError(
            f"{failed}; given up on row {row.id!r} after {self._engine.attempts} attempts: what is stored is kept, run again to go on"
        )

    async def _once(self, client: Client, row: Row) -> Answer:
        path, body = self._dialect.request(row)
        at = f"{self._engine.url}{path}: row {row.id!r}"
        try:
            reply = await client.post(path, orjson.dumps(body))
        except Lost as error:
            if error.kind == "too_long":
                raise EngineError(f"{at}: {error}: more states than were asked for") from None
            raise Again(f"{at}: {error.kind}: {error}") from None
        said = reply.body[:300].decode("utf-8", "replace")
        if reply.status in _LATER:
            raise Again(f"{at}: HTTP {reply.status}: {said}")
        if reply.status != 200:
            raise EngineError(f"{at}: HTTP {reply.status}: {said}")
        try:
            document = orjson.loads(reply.body)
        except orjson.JSONDecodeError as error:
            raise EngineError(f"{at}: the answer is not JSON: {error}; found {said!r}") from error
        return await self._dialect.answer(row, document)


def _key(engine: EngineSection) -> dict[str, str]:
    if engine.api_key_env is None:
        return {}
    if not (key := os.environ.get(engine.api_key_env, "").strip()):
        raise EngineError(
            f"engine.api_key_env is {engine.api_key_env}, and no such variable is set: export it, or set api_key_env to null"
        )
    return {"authorization": f"Bearer {key}"}


async def _all(tasks: list[asyncio.Task[Answer]]) -> list[Answer]:
    """Results of all, or the first failure as soon as it happens."""
    return list(await asyncio.gather(*tasks))


async def _stop(tasks: list[asyncio.Task[Answer]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
