"""A real HTTP server on loopback that answers by a script, and fails as real servers do.

It keeps its own account of the requests that it received and of the money that it billed.
"""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ENDPOINT = {
    "provider_name": "Alpha",
    "tag": "alpha",
    "quantization": "int4",
    "context_length": 4096,
    "max_completion_tokens": None,
    "pricing": {"prompt": "0.000001", "completion": "0.000002"},
    "supported_parameters": ["temperature", "top_p", "top_k", "max_tokens", "seed", "tools"],
}


@dataclass
class ScriptedReply:
    """The server's reaction to one request."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    delay: float = 0.0
    before: list[bytes] = field(default_factory=list)
    """Pieces sent ahead of the body, a tenth of a second apart: keep-alive white space, comments."""
    trickle: bytes | None = None
    """Sent without end, a tenth of a second apart, in place of a body."""
    cut: int | None = None
    """Bytes of the body after which the connection is closed, although the headers announce all of it."""
    drop: bool = False
    """Close the connection without an answer."""
    hold: threading.Event | None = None
    """Answer only after the test has set it."""
    billed: float = 0.0
    """Dollars that the server bills for it."""


def completion(
    text: str = "Seven.",
    *,
    provider: str | None = "Alpha",
    model: str = "m",
    prompt_tokens: int = 10,
    tokens: int = 5,
    cost: float | None = 0.00002,
) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
    }
    if cost is not None:
        usage["cost"] = cost
    message = {"role": "assistant", "content": text, "reasoning": "Count."}
    body: dict[str, Any] = {
        "id": "gen-1",
        "object": "chat.completion",
        "model": model,
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": usage,
    }
    if provider is not None:
        body["provider"] = provider
    return body


def good(text: str = "Seven.", *, delay: float = 0.0, **changes: Any) -> ScriptedReply:
    document = completion(text, **changes)
    return ScriptedReply(body=json.dumps(document).encode(), delay=delay, billed=document["usage"].get("cost") or 0.0)


def error(
    status: int, message: str = "no", *, headers: dict[str, str] | None = None, billed: float = 0.0, **metadata: Any
) -> ScriptedReply:
    return ScriptedReply(
        status,
        headers or {},
        json.dumps({"error": {"code": status, "message": message, "metadata": metadata}}).encode(),
        billed=billed,
    )


Script = Callable[[str, int], ScriptedReply]
"""From the last message's text, and the number of times that it was asked before, to a reply."""


class ChatServer:
    """Runs in its own thread, on a free port."""

    def __init__(self, script: Script | None = None, *, endpoints: list[dict[str, Any]] | None = None) -> None:
        self.script: Script = script or (lambda text, nth: good())
        self.endpoints = [ENDPOINT] if endpoints is None else endpoints
        self.lists_endpoints = True
        self.generations: dict[str, dict[str, Any]] = {}
        """Generation id to the bill that `/generation?id=` returns."""
        self.asked: list[str] = []
        self.times: list[float] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.billed = 0.0
        self.in_flight = 0
        self.most_in_flight = 0
        self._counts: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    def __enter__(self) -> "ChatServer":
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._main())

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=4096)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if first.startswith("GET"):
            await self._list(first, writer)
            return True
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._respond(json.loads(body), headers, writer)
        finally:
            self.in_flight -= 1

    async def _list(self, first: str, writer: asyncio.StreamWriter) -> None:
        if "/generation?id=" in first:
            bill = self.generations.get(first.split("id=")[1].split(" ")[0])
            document, found = (
                json.dumps({"data": bill} if bill else {"error": {"code": 404}}).encode(),
                bill is not None,
            )
        else:
            document, found = (
                json.dumps({"data": {"id": "m", "endpoints": self.endpoints}}).encode(),
                "/endpoints" in first and self.lists_endpoints,
            )
        status = "200 OK" if found else "404 Not Found"
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(document)}\r\n\r\n".encode() + document)
        await writer.drain()

    async def _respond(self, document: dict[str, Any], headers: dict[str, str], writer: asyncio.StreamWriter) -> bool:
        text = document["messages"][-1]["content"]
        answer = self.script(text, self._counts[text])
        self._counts[text] += 1
        self.asked.append(text)
        self.times.append(time.monotonic())
        self.bodies.append(document)
        self.headers.append(headers)
        self.billed += answer.billed
        await asyncio.sleep(answer.delay)
        # a test's thread sets the event; when the test fails, it closes the server
        while answer.hold is not None and not answer.hold.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        if answer.drop:
            return False
        extra = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        if answer.trickle is not None:
            writer.write(f"HTTP/1.1 200 OK\r\n{extra}connection: close\r\n\r\n".encode())
            while True:
                writer.write(answer.trickle)
                await writer.drain()
                await asyncio.sleep(0.1)
        length = len(answer.body) + sum(map(len, answer.before))
        writer.write(
            f"HTTP/1.1 {answer.status} X\r\ncontent-type: application/json\r\n{extra}"
            f"content-length: {length}\r\n\r\n".encode()
        )
        for piece in answer.before:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.1)
        writer.write(answer.body[: answer.cut])
        await writer.drain()
        return answer.cut is None
