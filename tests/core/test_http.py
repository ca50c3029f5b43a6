"""The HTTP client against servers that break the rules, and the number of its connections."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from pipeline.core.http import Client, Lost, Reply, Timeouts

TIMEOUTS = Timeouts(connect=60, read=60, total=120)
"""None of them is to end anything here."""

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def against(
    handler: Handler, requests: int = 1, connections: int = 4, body: bytes = b"{}", **settings: int
) -> list[Reply | BaseException]:
    async with (
        serving(handler) as url,
        Client(url, headers={}, timeouts=TIMEOUTS, connections=connections, **settings) as client,
    ):
        return await asyncio.gather(*(client.post("/x", body) for _ in range(requests)), return_exceptions=True)


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
    (found,) = asyncio.run(
        against(says(b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"))
    )
    assert isinstance(found, Reply)
    assert found.status == 302


def test_a_header_with_a_line_break_is_not_sent() -> None:
    async def ask() -> Reply:
        async with Client(
            "http://127.0.0.1:9", headers={"x-key": "a\r\nx-other: b"}, timeouts=TIMEOUTS, connections=1
        ) as client:
            return await client.post("/x", b"{}")

    with pytest.raises(Lost, match="a header holds a control character"):
        asyncio.run(ask())


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    (found,) = asyncio.run(against(says(b"HTTP/1.1 200 OK\r\n\r\n[1]")))
    assert isinstance(found, Reply)
    assert found.body == b"[1]"


def test_an_interim_answer_is_not_the_answer() -> None:
    (found,) = asyncio.run(
        against(says(b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]"))
    )
    assert isinstance(found, Reply)
    assert (found.status, found.body) == (200, b"[]")


def test_a_connection_is_not_used_again_when_the_server_answered_before_it_had_read_the_request() -> None:
    heads = []

    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        await asyncio.sleep(1)

    found = asyncio.run(against(hasty, requests=2, connections=1, body=b" " * (32 << 20)))
    assert [isinstance(reply, Reply) and reply.status for reply in found] == [413, 413]
    assert len(heads) == 2
    assert all(
        head.startswith(b"POST /x HTTP/1.1\r\n") and b"content-length: 33554432\r\n" in head.lower() for head in heads
    )


def test_a_request_that_is_given_up_takes_its_connection_along() -> None:
    """Else the late answer would be taken for that of the next request."""

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            wait = float((await reader.readuntil(b"}")).rpartition(b"{")[2][:-1])
            await asyncio.sleep(wait)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n%.1f" % wait)

    async def ask() -> list[bytes]:
        async with serving(late) as url, Client(url, headers={}, timeouts=TIMEOUTS, connections=1) as client:
            given_up = asyncio.create_task(client.post("/x", b"{0.3}"))
            await asyncio.sleep(0.1)
            given_up.cancel()
            return [(await client.post("/x", b"{%.1f}" % wait)).body for wait in (0.2, 0.0)]

    assert asyncio.run(ask()) == [b"0.2", b"0.0"]


def test_an_endless_answer_does_not_fill_the_memory() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")
            await writer.drain()

    (found,) = asyncio.run(against(endless, max_body=100_000))
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
