"""HTTP client: JSON over HTTP/1.1, thousands of requests at a time, a total deadline for each.

No other module opens a network connection as a client. It uses httpx's transport over aiohttp: httpx's own connection
pool rescans every connection at each request and stalls at this load. Requests go to the transport directly, since
everything that `httpx.AsyncClient` adds (cookies, redirects, auth) is unwanted here and costs more CPU than the rest of
a request. Posts bypass httpx's request and response objects too, see `_Transport`.
"""

import asyncio
import resource
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from http.client import SWITCHING_PROTOCOLS
from types import TracebackType
from typing import NamedTuple, Self

import aiohttp
import certifi
import httpx
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from httpx_aiohttp import AiohttpTransport
from httpx_aiohttp.transport import map_aiohttp_exceptions
from yarl import URL

from pipeline.core.errors import ConfigError, ProviderError

MAX_BODY = 256 << 20
"""Most bytes of one answer that are read, so that a server cannot fill the memory."""

_KEEP_ALIVE = 3.0
"""Seconds that an idle connection is kept; uvicorn closes it after 5 s, and no request may meet a closing one."""

_SPARE_FILES = 128
"""Open files besides the connections."""

NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds to connect, between two pieces of an answer, and for the whole request."""

    connect: float
    read: float
    total: float


class Reply(NamedTuple):
    """Answer of a server, of any status; `body` is as received, after its content encoding was undone."""

    status: int
    body: bytes
    headers: Mapping[str, str] = NO_HEADERS


class Lost(Exception):  # noqa: N818
    """No complete answer came."""

    def __init__(self, kind: str, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.kind = kind
        """connect, connect_timeout, read_timeout, deadline, disconnected, cut_short, bad_http or too_long."""
        self.sent = sent
        """Whether the server may have received the request, and may bill it."""


def require_open_files(connections: int) -> None:
    """Raise the limit of open files so that it allows this number of connections.

    Raises:
        ConfigError: the hard limit of open files is too low; the message has the command that raises it.

    """
    wanted = connections + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (resource.RLIM_INFINITY, -1) or soft >= wanted:
        return
    if hard not in (resource.RLIM_INFINITY, -1) and hard < wanted:
        raise ConfigError(
            f"provider.concurrency {connections} needs {wanted} open files, and this shell allows {hard}: "
            f"run `ulimit -n {wanted}` first (as root, or through /etc/security/limits.conf), "
            f"or lower provider.concurrency to {max(1, hard - _SPARE_FILES)}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _lost(error: BaseException, timeouts: Timeouts) -> Lost:
    """Classify an error, and decide whether the request may have reached the server. When in doubt, it has.

    The errors of httpx's transport are coarser than the errors of aiohttp that caused them.
    """
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
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        return Lost("bad_http", f"the answer is not HTTP: {error.message}", sent=True)
    return Lost("disconnected", text, sent=True)


class _Whole(httpx.AsyncByteStream):
    """A complete body as a stream."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.data


class _Address(NamedTuple):
    """The parts that all posts to one URL share."""

    request: aiohttp.ClientRequest
    """Request for the connection pool, which reads host and port from it."""
    head: bytes
    """Request line and headers, up to the length of the body."""


class _Transport(AiohttpTransport):  # type: ignore[misc]
    """The aiohttp transport for complete bodies.

    Headers and deadlines belong to the session and are built once, not for each request.
    """

    def __init__(self, session: aiohttp.ClientSession, max_body: int) -> None:
        # the session has its own connector, with its own certificate roots
        super().__init__(client=session, verify=False)
        self._session = session
        self._timeout = session.timeout
        self._max_body = max_body
        self._addresses: dict[str, _Address] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request whose stream is a `_Whole`; the stream of the response is one too."""
        assert isinstance(request.stream, _Whole)
        try:
            async with self._session.request(
                request.method, str(request.url), data=request.stream.data or None, allow_redirects=False
            ) as answer:
                body = await _read(answer.content, self._max_body)
        except (aiohttp.ClientError, OSError):
            with map_aiohttp_exceptions():
                raise
        return httpx.Response(answer.status, headers=dict(answer.headers), stream=_Whole(body))

    async def post(self, url: str, body: bytes, seen: "Seen | None") -> Reply:
        """Send a body with aiohttp's pool and parser alone, and read the whole answer.

        The objects that aiohttp's session builds for each request cost more than all other work on an answer.
        """
        address = self._addresses.get(url) or self._address(url)
        async with asyncio.timeout(self._timeout.total):  # bytes that keep a connection alive defeat a read timeout
            connection = await self._connect(address.request)
            protocol = connection.protocol
            assert protocol is not None
            try:
                reply = await self._exchange(protocol, b"%b%d\r\n\r\n%b" % (address.head, len(body), body), seen)
                if protocol.writing_paused:  # answered early: the unsent rest must not precede another request
                    protocol.force_close()
            except BaseException:
                connection.close()
                raise
            connection.release()
            return reply

    def _address(self, url: str) -> _Address:
        request = aiohttp.ClientRequest(
            "POST", URL(url), headers=self._session.headers, loop=asyncio.get_running_loop(), session=self._session
        )
        del request.headers["content-length"]
        lines = [
            f"POST {request.url.raw_path_qs} HTTP/1.1",
            *(f"{name}: {value}" for name, value in request.headers.items()),
            "content-length: ",
        ]
        if not all(map(str.isprintable, lines)):  # a line break in a pasted key would begin another header
            raise ValueError("a header holds a control character")
        return self._addresses.setdefault(url, _Address(request, "\r\n".join(lines).encode()))

    async def _connect(self, request: aiohttp.ClientRequest) -> Connection:
        assert self._session.connector is not None
        try:
            return await self._session.connector.connect(request, traces=[], timeout=self._timeout)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError from error

    async def _exchange(self, protocol: ResponseHandler, request: bytes, seen: "Seen | None") -> Reply:
        if protocol.transport is None:
            raise aiohttp.ServerDisconnectedError
        protocol.set_response_params(read_timeout=self._timeout.sock_read, read_until_eof=True)
        protocol.transport.write(request)
        protocol.start_timeout()
        message, content = await protocol.read()
        while (
            100 <= message.code < 200 and message.code != SWITCHING_PROTOCOLS
        ):  # informational: the answer is still to come
            message, content = await protocol.read()
        if seen is not None and not content.is_eof():
            seen(message.headers)
        return Reply(message.code, await _read(content, self._max_body), message.headers)


Seen = Callable[[Mapping[str, str]], None]
"""Called with the headers of an answer, when they come before its last byte."""


class Client:
    """Client of one server, with a pool of at most ``connections`` connections.

    An answer longer than ``max_body`` bytes is `Lost`.
    """

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str],
        timeouts: Timeouts,
        connections: int,
        max_body: int = MAX_BODY,
    ) -> None:
        self._base = base_url
        self._timeouts = timeouts
        secure = ssl.create_default_context(cafile=certifi.where()) if base_url.startswith("https:") else True
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=connections, keepalive_timeout=_KEEP_ALIVE, ssl=secure, ttl_dns_cache=300
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={
                "accept": "application/json",
                "accept-encoding": "identity",
                "content-type": "application/json",
                "user-agent": "aerie",
                **headers,
            },
            # bytes that keep a connection alive defeat a read timeout, so there is a total one
            timeout=aiohttp.ClientTimeout(
                total=timeouts.total,
                sock_connect=timeouts.connect,
                sock_read=timeouts.read,
                ceil_threshold=timeouts.total + 1,
            ),
        )
        self._transport = _Transport(session, max_body)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.aclose()

    async def post(self, path: str, body: bytes, seen: Seen | None = None) -> Reply:
        """Send a JSON body and read the whole answer.

        Raises:
            Lost: the server cannot be reached, or no complete answer came within the deadlines.

        """
        try:
            return await self._transport.post(self._base + path, body, seen)
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            raise _lost(error, self._timeouts) from None

    async def get(self, path: str) -> Reply:
        """Get a document.

        Raises:
            Lost: as `post`.

        """
        request = httpx.Request("GET", self._base + path, stream=_Whole(b""))
        try:
            response = await self._transport.handle_async_request(request)
        except (httpx.HTTPError, aiohttp.ClientError, OSError, ValueError) as error:
            raise _lost(error, self._timeouts) from None
        assert isinstance(response.stream, _Whole)
        return Reply(response.status_code, response.stream.data, response.headers)


async def _read(content: aiohttp.StreamReader, most: int) -> bytes:
    data = await content.readany()
    if content.at_eof():  # most answers come in one piece
        return data
    pieces, size = [data], len(data)
    while piece := await content.readany():
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise Lost("too_long", f"the answer is longer than {most:,} bytes", sent=True)
    return b"".join(pieces)


async def fetch(base_url: str, path: str, *, headers: Mapping[str, str], timeouts: Timeouts) -> Reply:
    """Get one document of a server.

    Raises:
        ProviderError: no complete answer came.

    """
    async with Client(base_url, headers=headers, timeouts=timeouts, connections=1) as client:
        try:
            return await client.get(path)
        except Lost as error:
            raise ProviderError(
                f"{base_url}{path}: {error.kind}: {error}; is the server up, and provider.base_url right?"
            ) from None
