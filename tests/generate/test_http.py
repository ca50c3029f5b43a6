"""The client by itself: what it says of a server that breaks the rules, and how many connections it opens."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pipeline import http
from pipeline.http import Client, Lost, Reply, Timeouts

TIMEOUTS = Timeouts(connect=2, read=2, total=5)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def against(handler: Handler, requests: int = 1, connections: int = 4) -> list[Reply | BaseException]:
    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with Client(f"http://127.0.0.1:{port}", headers={}, timeouts=TIMEOUTS, connections=connections) as client:
        found = await asyncio.gather(*(client.post("/x", b"{}") for _ in range(requests)), return_exceptions=True)
    server.close()
    return found


def says(raw: bytes) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(raw)
        await writer.drain()

    return handler


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"nonsense\r\n\r\n", "bad_http"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", "cut_short"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab", "cut_short"),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc", "cut_short"),
        (b"", "disconnected"),
    ],
)
def test_a_broken_answer_may_have_been_billed(raw: bytes, kind: str) -> None:
    (found,) = asyncio.run(against(says(raw)))
    assert isinstance(found, Lost)
    assert (found.kind, found.sent) == (kind, True)


def test_a_redirect_is_handed_over_and_not_followed() -> None:
    (found,) = asyncio.run(against(says(b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n")))
    assert isinstance(found, Reply)
    assert found.status == 302


def test_an_endless_answer_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BODY", 100_000)

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")
            await writer.drain()

    (found,) = asyncio.run(against(endless))
    assert isinstance(found, Lost)
    assert found.kind == "too_long"


def test_no_more_connections_are_opened_than_may_be_in_flight() -> None:
    opened = 0

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        while True:
            await reader.readuntil(b"{}")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            await writer.drain()

    found = asyncio.run(against(counted, requests=40, connections=4))
    assert all(isinstance(reply, Reply) and reply.body == b"{}" for reply in found)
    assert opened <= 4
