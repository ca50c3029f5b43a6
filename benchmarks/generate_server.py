"""The server of the `generate` benchmarks: it answers chat completions after a delay, and records each billed request.

It is as cheap as asyncio allows (one Protocol for each connection, nothing parsed but the content length), so that the
benchmark measures the client. It ends when its standard input closes, so never later than the benchmark that started
it.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import uvloop

ENDPOINT = {
    "provider_name": "Alpha",
    "tag": "alpha",
    "quantization": "int4",
    "context_length": 262144,
    "pricing": {"prompt": "0.000001", "completion": "0.000002"},
    "supported_parameters": ["temperature", "top_p", "max_tokens", "seed", "tools"],
}
COST = 0.00002
"""Dollars of each answer, unless --costs draws others."""


@dataclass(frozen=True, slots=True)
class Habits:
    """Size, delay and cost of the server's answers."""

    delay: float
    spread: float
    size: int


def answer(habits: Habits) -> bytes:
    """Return a body of the configured size."""
    document: dict[str, Any] = {
        "id": "gen-1",
        "object": "chat.completion",
        "model": "m",
        "provider": "Alpha",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "", "reasoning": "so"}}
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "cost": COST},
    }
    missing = habits.size - len(json.dumps(document))
    document["choices"][0]["message"]["content"] = "x" * max(1, missing)
    return json.dumps(document).encode()


class Chat(asyncio.Protocol):
    """One connection."""

    def __init__(self, habits: Habits, ledger: IO[str] | None, whole: bytes, listing: bytes) -> None:
        self._habits = habits
        self._ledger = ledger
        self._whole = whole
        self._listing = listing
        self._held = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport for the answers."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Read one request, and answer it after the delay."""
        self._held += data
        head, mark, rest = self._held.partition(b"\r\n\r\n")
        if not mark:
            return
        if head.startswith(b"GET"):
            self._held = b""
            self._transport.write(self._listing)
            return
        start = head.lower().index(b"content-length:") + 15
        length = int(head[start:].partition(b"\r\n")[0])
        if len(rest) < length:
            return
        body, self._held = rest[:length], rest[length:]
        if self._ledger is not None:  # billed when it is accepted, even if the answer is never received
            self._ledger.write(f"{hashlib.sha256(body).hexdigest()} {COST} {time.time()}\n")
            self._ledger.flush()
        delay = self._habits.delay + random.random() * self._habits.spread
        asyncio.get_running_loop().call_later(delay, self._answer)

    def _answer(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._whole)


def response(body: bytes) -> bytes:
    """Return a whole HTTP response."""
    return f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


async def serve(habits: Habits, ledger: IO[str] | None) -> None:
    """Answer until standard input closes."""
    loop = asyncio.get_running_loop()
    whole = response(answer(habits))
    listing = response(json.dumps({"data": {"id": "m", "endpoints": [ENDPOINT]}}).encode())
    server = await loop.create_server(lambda: Chat(habits, ledger, whole, listing), "127.0.0.1", 0, backlog=8192)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    os._exit(0)


@contextlib.contextmanager
def running(*, delay: float, spread: float = 0.0, size: int = 4000, ledger: Path | None = None) -> Iterator[str]:
    """Run the server in its own process for the block; yield the base URL of its API."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.generate_server",
        f"--delay={delay}",
        f"--spread={spread}",
        f"--size={size}",
    ]
    if ledger is not None:
        command.append(f"--ledger={ledger}")
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(child.stdout.readline())}/v1"
    finally:
        child.stdin.close()
        child.wait(10)
        child.stdout.close()


def main() -> None:
    """Run one server."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay", type=float, required=True)
    parser.add_argument("--spread", type=float, default=0.0)
    parser.add_argument("--size", type=int, default=4000)
    parser.add_argument("--ledger", default=None)
    options = parser.parse_args()
    with open(options.ledger or os.devnull, "a") as ledger:
        uvloop.run(serve(Habits(options.delay, options.spread, options.size), ledger if options.ledger else None))


if __name__ == "__main__":
    main()
