"""The only network client: JSON over HTTP/1.1, thousands of requests at a time, a total deadline for each.

httpx over its aiohttp transport: httpx's own connection pool rescans every connection at each request and stalls at this load.
Requests go to the transport itself, since all that `httpx.AsyncClient` adds (cookies, redirects, auth) is unwanted here and costs
more CPU than the rest of a request.
"""

import asyncio
import resource
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import aiohttp
import certifi
import httpx
from httpx_aiohttp import AiohttpTransport

from pipeline.errors import ConfigError, ProviderError

MAX_BODY = 256 << 20
"""Bytes of one answer that are read at most; a server cannot fill the memory."""

_KEEP_ALIVE = 3.0
"""Seconds an idle connection is kept: below the 5 s after which uvicorn closes it, so that no request meets a closing one."""

_SPARE_FILES = 128
"""Open files besides the connections."""

NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to connect, between two pieces of an answer, and for the whole request."""

    connect: float
    read: float
    total: float


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered, whatever the status; `body` is as received, content encoding undone."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)


class Lost(Exception):  # noqa: N818
    """No whole answer came."""

    def __init__(self, kind: str, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.kind = kind
        """connect, connect_timeout, read_timeout, deadline, disconnected, cut_short, bad_http or too_long."""
        self.sent = sent
        """Whether the server may have received the request, and so may bill it."""


def require_open_files(connections: int) -> None:
    """Make room for so many connections, as far as the hard limit lets us.

    Raises:
        ConfigError: the hard limit of open files is too low; the message says what to set.

    """
    wanted = connections + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (resource.RLIM_INFINITY, -1) or soft >= wanted:
        return
    if hard not in (resource.RLIM_INFINITY, -1) and hard < wanted:
        raise ConfigError(
            f"provider.concurrency {connections} needs {wanted} open files, and this shell allows {hard}: "
            f"run `ulimit -n {wanted}` first (as root, or through /etc/security/limits.conf), or lower provider.concurrency to {max(1, hard - _SPARE_FILES)}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _lost(error: BaseException, timeouts: Timeouts) -> Lost:
    """Say what happened, and whether the request may have reached the server. In doubt it has.

    The transport's own errors are coarser than aiohttp's, which stand behind them as their cause.
    """
    if isinstance(error, httpx.DecodingError):
        return Lost("cut_short", f"the body does not decode: {error}", sent=True)
    error = error.__cause__ if isinstance(error, httpx.HTTPError) and error.__cause__ else error
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError):
        return Lost("connect", text, sent=False)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return Lost("connect_timeout", f"no connection within {timeouts.connect:g} s", sent=False)
    if isinstance(error, aiohttp.SocketTimeoutError):
        return Lost("read_timeout", f"no byte for {timeouts.read:g} s", sent=True)
    if isinstance(error, TimeoutError):
        return Lost("deadline", f"no whole answer within {timeouts.total:g} s", sent=True)
    if isinstance(error, aiohttp.ClientPayloadError):
        return Lost("cut_short", text, sent=True)
    if isinstance(error, aiohttp.ClientResponseError):
        return Lost("bad_http", f"the answer is no HTTP: {error.message}", sent=True)
    return Lost("disconnected", text, sent=True)


class Client:
    """Posts JSON bodies to one server over a pool of as many connections as may be in flight."""

    def __init__(self, base_url: str, *, headers: Mapping[str, str], timeouts: Timeouts, connections: int) -> None:
        self._base = base_url
        self._timeouts = timeouts
        self._urls: dict[str, httpx.URL] = {}
        self._headers = httpx.Headers(
            {"accept": "application/json", "accept-encoding": "identity", "content-type": "application/json", "user-agent": "aerie", **headers}
        )
        # the total deadline is ours: bytes that keep a connection alive defeat a read timeout
        self._extensions = {"timeout": {"connect": timeouts.connect, "read": timeouts.read, "pool": None, "write": None}}
        secure = ssl.create_default_context(cafile=certifi.where()) if base_url.startswith("https:") else True
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=_KEEP_ALIVE, ssl=secure, ttl_dns_cache=300), cookie_jar=aiohttp.DummyCookieJar()
        )
        self._transport = AiohttpTransport(client=self._session)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._transport.aclose()

    async def post(self, path: str, body: bytes) -> Reply:
        """Send a JSON body and read the whole answer.

        Raises:
            Lost: the server could not be reached, or no whole answer came within the deadlines.

        """
        return await self._exchange("POST", path, body)

    async def patch(self, path: str, body: bytes) -> Reply:
        """Change a document.

        Raises:
            Lost: as `post`.

        """
        return await self._exchange("PATCH", path, body)

    async def get(self, path: str) -> Reply:
        """Ask for a document.

        Raises:
            Lost: as `post`.

        """
        return await self._exchange("GET", path, None)

    async def _exchange(self, method: str, path: str, body: bytes | None) -> Reply:
        url = self._urls.get(path) or self._urls.setdefault(path, httpx.URL(self._base + path))
        request = httpx.Request(method, url, headers=self._headers, content=body, extensions=self._extensions)
        try:
            async with asyncio.timeout(self._timeouts.total):
                response = await self._transport.handle_async_request(request)
                try:
                    return Reply(response.status_code, await _read(response), response.headers)
                finally:
                    await response.aclose()
        except (httpx.HTTPError, aiohttp.ClientError, OSError, ValueError) as error:
            raise _lost(error, self._timeouts) from None


async def _read(response: httpx.Response) -> bytes:
    pieces = []
    size = 0
    async for piece in response.aiter_bytes():
        pieces.append(piece)
        size += len(piece)
        if size > MAX_BODY:
            raise Lost("too_long", f"the answer is longer than {MAX_BODY:,} bytes", sent=True)
    return b"".join(pieces)


async def fetch(base_url: str, path: str, *, headers: Mapping[str, str], timeouts: Timeouts) -> Reply:
    """Ask one document of a server.

    Raises:
        ProviderError: no whole answer came.

    """
    async with Client(base_url, headers=headers, timeouts=timeouts, connections=1) as client:
        try:
            return await client.get(path)
        except Lost as error:
            raise ProviderError(f"{base_url}{path}: {error.kind}: {error}; is the server up, and provider.base_url right?") from None
