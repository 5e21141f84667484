"""HTTP for people's browsers: GET on a few paths, on the router's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

from paceline.address import bare_host
from paceline.ports import Listener, cannot_listen

_log = logging.getLogger(__name__)
_HEAD_LIMIT = 16 * 1024  # bytes of a request's line and headers
_IDLE_S = 60.0  # a connection without a request
_WRITE_S = 10.0  # for a browser to take an answer
_HEADERS = (
    "Cache-Control: no-store\r\n"
    "Content-Security-Policy: default-src 'self'; img-src 'self' data:; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer's body, its media type and its status."""

    body: bytes
    media_type: str
    status: HTTPStatus = HTTPStatus.OK


Route = Callable[[Mapping[str, str]], Awaitable[Reply]]


class HttpServer:
    """Answers GET on the routes, each of which takes the query's fields. Event loop only; ``start``, then ``close``."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = routes
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Returns the port. Raises ConfigError where it is taken."""
        try:
            self._server = await asyncio.start_server(self._serve, bare_host(host), port, limit=_HEAD_LIMIT)
        except OSError as error:
            raise cannot_listen(Listener("--page-port", host, port), error) from error
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Ends every connection."""
        if self._server is None:
            return
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
                while await self._exchange(reader, writer):
                    pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection stays."""
        try:
            async with asyncio.timeout(_IDLE_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            reply, stays = _refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), False
        else:
            line, _, fields = head.decode("latin-1").partition("\r\n")
            reply = await self._answer(line)
            stays = line.endswith("HTTP/1.1") and "connection: close" not in fields.lower()
            stays = stays and reply.status is not HTTPStatus.BAD_REQUEST and "content-length" not in fields.lower()
        connection = "keep-alive" if stays else "close"
        writer.write(
            f"HTTP/1.1 {reply.status.value} {reply.status.phrase}\r\n"
            f"Content-Type: {reply.media_type}\r\nContent-Length: {len(reply.body)}\r\n"
            f"Connection: {connection}\r\n{_HEADERS}\r\n".encode("latin-1")
            + reply.body
        )
        async with asyncio.timeout(_WRITE_S):
            await writer.drain()
        return stays

    async def _answer(self, line: str) -> Reply:
        words = line.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _refusal(HTTPStatus.BAD_REQUEST)
        method, target, _ = words
        if method != "GET":
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            url = urlsplit(target)
            query = dict(parse_qsl(url.query))
        except ValueError:
            return _refusal(HTTPStatus.BAD_REQUEST)
        route = self._routes.get(url.path)
        if route is None:
            return _refusal(HTTPStatus.NOT_FOUND)
        try:
            return await route(query)
        except Exception:  # noqa: BLE001 - a page that cannot be made must not end the router
            _log.exception("GET %s failed", url.path)
            return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR)


def _refusal(status: HTTPStatus) -> Reply:
    return Reply(f"{status.value} {status.phrase}\n".encode(), "text/plain; charset=utf-8", status)
