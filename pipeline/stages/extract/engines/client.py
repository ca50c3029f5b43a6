"""The backend that asks a serving engine, and checks every row before it is stored.

Concurrency is bounded, and failures are retried by kind. Rows are asked for ahead and handed on in order. After a
failure the server's identity is asked for again before the next request.
"""

import asyncio
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
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
from pipeline.stages.extract.engines.engine_api import (
    CaptureSpec,
    EngineApi,
    EngineReply,
    ServerIdentity,
    TransientError,
)
from pipeline.stages.extract.engines.head_check import check_next_tokens, refuse_normed
from pipeline.stages.extract.engines.reply_checks import check_reply
from pipeline.stages.extract.engines.sglang import Sglang
from pipeline.stages.extract.engines.state_checks import StateChecks
from pipeline.stages.extract.engines.vllm import Vllm
from pipeline.stages.extract.plan import InputRow

_APIS: dict[str, type[Vllm] | type[Sglang]] = {"vllm": Vllm, "sglang": Sglang}
_CONNECT_SECONDS = 10.0
_NUMBER_BYTES = 26
"""Most bytes of one number in JSON."""
_BODY_SLACK = 1 << 20
_RETRY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses after which the same request may succeed."""
_PROBE_QUARTERS = (1, 2, 3, 4)
"""The first row is asked for up to these quarters of its length before all others."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A batch under way: its rows, and the task of each."""

    rows: list[InputRow]
    tasks: list[asyncio.Task[EngineReply]]


class ServerBackend:
    """Asks a serving engine for the states of one row at a time."""

    padded = False
    by_row = True

    def __init__(self, settings: ExtractSection, engine: EngineSection, model: Path, layer_ids: list[int]) -> None:
        """Read the target's shape and ask the server for its identity.

        Raises:
            EngineError: the server cannot be reached, serves something else, or was launched with wrong options.

        """
        self._settings, self._engine, self._model = settings, engine, model
        self._target = open_shape(find_source(model))
        self._layer_ids = layer_ids
        ids = tuple(sorted({*layer_ids, self._target.num_layers}))
        self._spec = CaptureSpec(
            engine.model or self._target.source.name, ids, self._target.hidden_size, DTYPES[settings.compute_dtype]
        )
        self._api: EngineApi = _APIS[settings.backend](engine, self._spec)
        self._headers = _key_header(engine)
        self._identity = asyncio.run(self._first_identity())
        self.engine = self._identity.engine
        self.confirms_layers = self._identity.confirms_layers

    def start(self, probe: InputRow | None) -> Target:
        """Check on ``probe``, and on beginnings of it, that the last state is what the target's head reads.

        Raises:
            EngineError: it is not, or a reply is not what was asked for.

        """
        if probe is None:
            return self._target
        self._ends = open_ends(self._model, dtype=self._spec.dtype)
        self._state_checks = StateChecks(self._ends.embedding, self._spec.layer_ids, self._engine.url)
        length = len(probe.token_ids)
        cuts = sorted({max(1, length * quarter // 4) for quarter in _PROBE_QUARTERS})
        rows = [
            replace(probe, id=f"{probe.id} (its first {cut} tokens)", token_ids=probe.token_ids[:cut]) for cut in cuts
        ]
        replies = asyncio.run(self._ask_in_turn(rows))
        refuse_normed(self._ends, replies, self._engine.url)
        self._check(rows, replies)
        return self._target

    def states(self, batches: Iterable[list[InputRow]]) -> Iterator[States]:
        """Yield the checked states of each batch, in order; rows of later batches are asked for meanwhile.

        Batches that are there already are checked together: then a slow check costs one product with the head for all
        of them.
        """
        # not asyncio.Runner: it formats every pending result, tensors included, whenever it looks at the signal
        # handlers
        loop = asyncio.new_event_loop()
        gate = asyncio.Semaphore(self._engine.concurrency)
        client = loop.run_until_complete(self._client())
        ahead: deque[_Asked] = deque()
        source = iter(batches)
        try:
            while True:
                while sum(len(asked.tasks) for asked in ahead) < 2 * self._engine.concurrency:
                    if (rows := next(source, None)) is None:
                        break
                    ahead.append(_Asked(rows, [loop.create_task(self._ask(client, gate, row)) for row in rows]))
                if not ahead:
                    return
                loop.run_until_complete(_all(ahead[0].tasks))
                done = [ahead.popleft()]
                while len(done) < self._engine.concurrency and ahead and _succeeded(ahead[0]):
                    done.append(ahead.popleft())
                replies = [[task.result() for task in asked.tasks] for asked in done]
                self._check(
                    [row for asked in done for row in asked.rows], [reply for some in replies for reply in some]
                )
                for some in replies:
                    yield self._joined(some)
        finally:
            loop.run_until_complete(_stop([task for asked in ahead for task in asked.tasks]))
            loop.run_until_complete(client.__aexit__(None, None, None))
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    def _check(self, rows: list[InputRow], replies: list[EngineReply]) -> None:
        """Check the values of the states; their form was checked when they came."""
        for row, reply in zip(rows, replies, strict=True):
            self._state_checks.check(row, reply.states)
        check_next_tokens(self._ends, rows, replies, self._engine.url)

    def _joined(self, replies: list[EngineReply]) -> States:
        whole = torch.cat([reply.states for reply in replies])
        places = [self._spec.layer_ids.index(number) for number in self._layer_ids]
        return States(whole[:, places].flatten(1), whole[:, -1])

    async def _client(self) -> Client:
        timeouts = Timeouts(min(_CONNECT_SECONDS, self._engine.timeout), self._engine.timeout, self._engine.timeout)
        # the longest row's states as JSON text; vLLM's replies hold only ids
        largest_reply = (
            self._settings.max_length * len(self._spec.layer_ids) * self._spec.hidden_size * _NUMBER_BYTES + _BODY_SLACK
        )
        return Client(
            self._engine.url,
            headers=self._headers,
            timeouts=timeouts,
            connections=self._engine.concurrency,
            max_body=largest_reply,
        )

    async def _first_identity(self) -> ServerIdentity:
        async with await self._client() as client:
            try:
                identity = await self._identify(client)
            except TransientError as error:
                raise EngineError(
                    f"{error}; is the server up, and engine.url right? docs/extract-servers.md has the launch command"
                ) from None
        if self._spec.model not in identity.models:
            raise EngineError(
                f"{self._engine.url}: serves {' alias '.join(sorted(set(identity.models)))}; the target is "
                f"{self._spec.model}: another model's states would train nothing. If it is the same model under "
                "another name, set engine.model to that name"
            )
        return identity

    async def _identify(self, client: Client) -> ServerIdentity:
        async def get(path: str) -> bytes | None:
            try:
                response = await client.get(path)
            except Lost as error:
                raise TransientError(f"{self._engine.url}{path}: {error.kind}: {error}") from None
            if response.status in (401, 403):
                raise EngineError(
                    f"{self._engine.url}{path}: HTTP {response.status}: the server needs a key: "
                    "name its environment variable in engine.api_key_env"
                )
            if response.status in _RETRY_STATUSES:
                raise TransientError(f"{self._engine.url}{path}: HTTP {response.status}")
            return response.body if response.status == 200 else None

        return await self._api.identify(get)

    async def _ask_in_turn(self, rows: list[InputRow]) -> list[EngineReply]:
        gate = asyncio.Semaphore(self._engine.concurrency)
        async with await self._client() as client:
            return [await self._ask(client, gate, row) for row in rows]

    async def _ask(self, client: Client, gate: asyncio.Semaphore, row: InputRow) -> EngineReply:
        """Ask for one row until there is a reply, and check the reply's form."""
        most = self._identity.max_length
        if most is not None and len(row.token_ids) + 1 > most:
            raise EngineError(
                f"{self._engine.url}: row {row.id!r} has {len(row.token_ids)} tokens; the server takes {most - 1} and "
                "writes one: raise its context length, or lower extract.max_length"
            )
        failure = ""
        for attempt in range(self._engine.attempts):
            if attempt:
                await asyncio.sleep(min(self._engine.max_wait, 0.5 * 2.0 ** (attempt - 1)))
            try:
                async with gate:
                    if attempt:
                        await self._check_same_server(client)
                    reply = await self._attempt(client, row)
            except TransientError as error:
                failure = str(error)
                continue
            check_reply(row, reply, self._spec, caching=self._identity.caching, where=self._engine.url)
            return reply
        raise EngineError(
            f"{failure}; gave up on row {row.id!r} after {self._engine.attempts} attempts: "
            "the shards that are stored are kept, run again to go on"
        )

    async def _check_same_server(self, client: Client) -> None:
        if (now := await self._identify(client)) != self._identity:
            raise EngineError(
                f"{self._engine.url}: was {self._identity}, and came back as {now}: "
                "run again, so that states of two servers do not mix"
            )

    async def _attempt(self, client: Client, row: InputRow) -> EngineReply:
        path, body = self._api.request(row)
        at = f"{self._engine.url}{path}: row {row.id!r}"
        try:
            response = await client.post(path, orjson.dumps(body))
        except Lost as error:
            if error.kind == "too_long":
                raise EngineError(f"{at}: {error}: more states than were asked for") from None
            raise TransientError(f"{at}: {error.kind}: {error}") from None
        excerpt = response.body[:300].decode("utf-8", "replace")
        if response.status in _RETRY_STATUSES:
            raise TransientError(f"{at}: HTTP {response.status}: {excerpt}")
        if response.status != 200:
            raise EngineError(f"{at}: HTTP {response.status}: {excerpt}")
        try:
            document = orjson.loads(response.body)
        except orjson.JSONDecodeError as error:
            raise EngineError(f"{at}: the reply is not JSON: {error}; found {excerpt!r}") from error
        return await self._api.read_reply(row, document)


def _key_header(engine: EngineSection) -> dict[str, str]:
    if engine.api_key_env is None:
        return {}
    if not (key := os.environ.get(engine.api_key_env, "").strip()):
        raise EngineError(
            f"engine.api_key_env is {engine.api_key_env}, and that variable is not set: "
            "export it, or set api_key_env to null"
        )
    return {"authorization": f"Bearer {key}"}


def _succeeded(asked: _Asked) -> bool:
    return all(task.done() and not task.exception() for task in asked.tasks)


async def _all(tasks: list[asyncio.Task[EngineReply]]) -> None:
    """Wait for all tasks; raise the first failure as soon as it happens."""
    await asyncio.gather(*tasks)


async def _stop(tasks: list[asyncio.Task[EngineReply]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
