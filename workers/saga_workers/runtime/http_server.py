"""The HTTP server of long-running processes: Starlette routes on uvicorn.

Clients are untrusted: request heads are limited in size and time, responses have to be read in time, connections are
limited in number, and bodies are refused unless the application reads them, within limits. uvicorn limits the size;
:class:`_BoundedProtocol` adds the rest. Idle and slow clients cannot keep others out: their connections are closed
first when there are too many.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import h11
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import Server

from saga_workers.input_limits import HEAD_TIMEOUT, MAX_CONNECTIONS, MAX_HEAD_BYTES, SEND_TIMEOUT
from saga_workers.runtime.bounded_requests import RequestReader
from sagas.errors import UsageError
from sagas.settings.addresses import split_listen_address
from sagas.text.exact_json import readable_json
from sagas.text.json_values import without_half_pairs

log = logging.getLogger("saga.http")

SHUTDOWN_GRACE = 5.0
"""Seconds that responses under way have to end when the server stops, unless it has a grace of its own."""

_CANCEL_TIMEOUT = 1.0
"""Seconds that requests have to answer something shorter when they are cancelled at the end of the grace."""

_LINGER = 1.0
"""Seconds that a refused client has to read why: closing at once would reset the connection while it still sends."""

_MAX_DROPPED_BYTES = 256 * 1024
"""Bytes of a body that are read and dropped for the same reason, within that time, before a response without it."""

_CLOSE = {"Connection": "close"}


def json_response(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Response:
    text = readable_json(value)
    if "\\ud" in text:  # only half a surrogate pair is written as such an escape
        text = readable_json(without_half_pairs(value))
    return Response(text.encode() + b"\n", status, headers, "application/json")


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """A response with an error message."""
    return json_response(status, {"error": message}, headers)


def http_app(
    routes: Sequence[Route],
    middleware: Sequence[Middleware] = (),
    *,
    max_body_bytes: int = 0,
    answered: Callable[[int], None] | None = None,
) -> Starlette:
    """An application whose every error is a JSON object with a message.

    It answers GET and HEAD, and with ``max_body_bytes`` also POST; the routes read bodies themselves. Path parameters
    are percent-encoded, as they were sent: a ``%2F`` is not a separator. Routes that are not in a schema are not named
    to who asks for another page. ``answered`` is called with the status of each response.
    """
    pages = ", ".join(sorted({route.path for route in routes if route.include_in_schema}))

    async def not_found(_: Request, __: Exception) -> Response:
        return error_response(404, f"there is no such page; there are {pages}")

    async def wrong_method(_: Request, error: Exception) -> Response:
        allowed = (getattr(error, "headers", None) or {}).get("Allow", "")
        methods = ", ".join(sorted(method.strip() for method in allowed.split(",")))
        return error_response(405, f"this page answers {methods}", {"Allow": methods, **_CLOSE})

    async def failed(request: Request, error: Exception) -> Response:
        log.error("a request for %s could not be answered: this is a bug in saga", request.url.path, exc_info=error)
        return error_response(500, "this is a bug in saga; its log has more")

    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(RequestFilter, refusal=partial(_refusal, max_body_bytes=max_body_bytes), answered=answered),
            *middleware,
        ],
        exception_handlers={404: not_found, 405: wrong_method, Exception: failed},
    )
    app.router.redirect_slashes = False
    return app


class RequestFilter:
    """Middleware that answers requests in place of the application. Starlette's own runs each request in a task, which
    takes a fifth of the CPU of a start.

    ``refusal``: the response to a request that the application may not see, None to any other. ``answered`` is called
    with the status of each response.

    A body that nothing has read is dropped before the response is sent, if it is small and comes soon: many clients
    send it after the head, and a connection that is closed meanwhile would lose them the response. After a larger one,
    or one that its client announces with `Expect`, the response says that it closes the connection: the server does,
    and a client that sent another request over it would get a reset.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        refusal: Callable[[Request], Response | None],
        answered: Callable[[int], None] | None = None,
    ) -> None:
        self._app = app
        self._refuse = refusal
        self._answered = answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope["headers"]}
        has_body = not names.isdisjoint((b"content-length", b"transfer-encoding"))

        async def receive_body() -> Message:
            nonlocal has_body
            message = await receive()
            has_body = has_body and bool(message.get("more_body"))
            return message

        async def drop_body() -> None:
            size = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LINGER):
                    while has_body and size < _MAX_DROPPED_BYTES:
                        size += len((await receive_body()).get("body", b""))

        async def send_and_tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                if has_body and b"expect" not in names:
                    await drop_body()
                if has_body and all(name != b"connection" for name, _ in message["headers"]):
                    message["headers"].append((b"connection", b"close"))
                if self._answered is not None:
                    self._answered(message["status"])
            await send(message)

        await (self._refuse(Request(scope)) or self._app)(scope, receive_body, send_and_tell)


def _refusal(request: Request, max_body_bytes: int) -> Response | None:
    """The response to a request that no route may see; None if there is nothing wrong with it."""
    path: bytes = request.scope["raw_path"]
    # uvicorn's limit only stops a head that has not arrived completely.
    if (
        len(path) + len(request.scope["query_string"]) + sum(len(k) + len(v) for k, v in request.headers.raw)
        > MAX_HEAD_BYTES
    ):
        return error_response(431, _HEAD_TOO_LARGE, _CLOSE)
    methods = ("GET", "HEAD", "POST") if max_body_bytes else ("GET", "HEAD")
    if request.method not in methods:
        allowed = ", ".join(methods)
        return error_response(405, f"this endpoint answers {allowed}", {"Allow": allowed, **_CLOSE})
    length = request.headers.get("content-length", "0")
    if request.method == "POST":
        if length.isdecimal() and int(length[:20]) > max_body_bytes:
            return error_response(413, f"the body may have {max_body_bytes} bytes", _CLOSE)
    elif length != "0" or "transfer-encoding" in request.headers:
        return error_response(400, f"a {request.method} request has no body here", _CLOSE)
    if not path.startswith(b"/"):
        return error_response(400, _NOT_HTTP, _CLOSE)
    request.scope["path"] = path.decode("ascii")
    return None


_NOT_HTTP = "this is not an HTTP request"
_HEAD_TOO_LARGE = f"the head of a request may have {MAX_HEAD_BYTES} bytes"


class HttpServer:
    """Listens on ``address`` (HOST:PORT) while it is open. ``option`` names the source of the address in errors.

    ``max_connections``: how many there may be at the same time; None: MAX_CONNECTIONS. ``grace``: seconds that
    requests under way have to end when it is closed; then they are cancelled. It accepts no connection meanwhile.
    """

    def __init__(
        self,
        address: str,
        app: ASGIApp,
        *,
        option: str,
        description: str,
        max_connections: int | None = None,
        grace: float = SHUTDOWN_GRACE,
    ) -> None:
        self._host, self._port = split_listen_address(option, address)
        self._option = option
        self._description = description
        self._backlog = MAX_CONNECTIONS if max_connections is None else max_connections
        self._sockets: list[socket.socket] = []
        self._server = _Server(
            Config(
                app,
                interface="asgi3",
                http=_BoundedProtocol,
                ws="none",
                lifespan="off",
                workers=1,  # otherwise taken from the environment
                backlog=self._backlog,
                timeout_keep_alive=math.ceil(HEAD_TIMEOUT),
                timeout_graceful_shutdown=math.ceil(grace),
                proxy_headers=False,
                server_header=False,
                access_log=False,
                log_config=None,
                # It logs the mistakes of clients, and once more what is in our own log.
                log_level=logging.CRITICAL,
            )
        )

    @property
    def port(self) -> int:
        """The port it listens on; the assigned one if the address has port 0."""
        return self._sockets[0].getsockname()[1]

    @property
    def busy(self) -> int:
        """The number of requests being answered."""
        return sum(connection.busy for connection in self._connections())

    async def __aenter__(self) -> HttpServer:
        try:
            resolved = await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            for family, _, _, _, address in dict.fromkeys(resolved):
                self._sockets.append(socket.create_server(address[:2], family=family, backlog=self._backlog))
        except OSError as error:
            raise UsageError(
                f"{self._description} cannot listen on {self._host}:{self._port}: {error.strerror or error}",
                help=f"choose another port with {self._option} HOST:PORT",
            ) from error
        self._task = asyncio.create_task(self._server.serve(self._sockets), name=self._description)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        await self._task
        if cancelled := self._server.server_state.tasks:
            await asyncio.wait(cancelled, timeout=_CANCEL_TIMEOUT)
        for connection in self._connections():
            connection.transport.abort()

    def _connections(self) -> list[_BoundedProtocol]:
        return [
            connection
            for connection in self._server.server_state.connections
            if isinstance(connection, _BoundedProtocol)
        ]


class _Server(Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave SIGTERM and SIGINT to the process, which stops the server with the rest of its work."""
        yield


class _BoundedProtocol(H11Protocol):
    """A connection. uvicorn has no limit for the time of a request's head, of an unread response, or of connections."""

    _head_timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None
    _waiting_since = 0.0
    refused = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn: RequestReader = RequestReader()

    @property
    def _max_connections(self) -> int:
        return self.config.backlog  # those that are served, and those that wait to be accepted

    @property
    def busy(self) -> bool:
        """True if a request is being answered, or its response is not read yet."""
        return self._answering or self.flow.write_paused

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        # asyncio does it only for sockets whose protocol is given. A response is written in two parts, and the second
        # would wait until the client's system acknowledges the first, which takes 40 ms on a connection that is kept.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=0)  # so that writing is paused as long as anything is not sent
        self._waiting_since = self.loop.time()
        if len(self.connections) > 2 * self._max_connections:
            transport.abort()
        elif not self._has_place():
            self._refuse(503, "too many connections at once; try again")
        else:
            self._watch_head()

    def _has_place(self) -> bool:
        """Return whether this new connection can be served, if need be in place of one that waits for its client."""
        served = [
            connection
            for connection in self.connections
            if isinstance(connection, _BoundedProtocol) and not connection.refused
        ]
        if len(served) <= self._max_connections:
            return True
        waiting = [
            connection
            for connection in served
            if connection is not self and (connection.flow.write_paused or not connection._answering)
        ]
        if not waiting:
            return False
        longest = min(waiting, key=lambda connection: connection._waiting_since)
        longest.refused = True
        longest.transport.abort()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        _cancel(self._head_timer)
        _cancel(self._send_timer)

    def data_received(self, data: bytes) -> None:
        # In portions, since h11 limits a head, or the trailers of a body, only while they have not arrived completely.
        for start in range(0, len(data), MAX_HEAD_BYTES):
            if self.refused:
                return
            super().data_received(data[start : start + MAX_HEAD_BYTES])
            self._watch_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._waiting_since = self.loop.time()
        self._watch_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._waiting_since = self.loop.time()
        # close() would wait until the client has read everything.
        self._send_timer = self.loop.call_later(SEND_TIMEOUT, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._send_timer)

    def send_400_response(self, msg: str) -> None:
        unread, _ = self.conn.trailing_data
        if self.conn.problem is not None:
            self._refuse(400, self.conn.problem)
        elif len(unread) > MAX_HEAD_BYTES:
            self._refuse(431, _HEAD_TOO_LARGE)
        else:
            self._refuse(400, _NOT_HTTP)

    def _watch_head(self) -> None:
        """Bound the time from the start of the connection, or the last response, to the next complete head."""
        if self._answering or self.refused:
            _cancel(self._head_timer)
            self._head_timer = None
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT, self.transport.close)

    def _refuse(self, status: int, message: str) -> None:
        self.refused = True
        if self._answering:  # the request turns out to be malformed in its body
            self.cycle.disconnected = True
        response = error_response(status, message, _CLOSE)
        head = h11.Response(status_code=status, headers=response.raw_headers, reason=STATUS_PHRASES[status])
        try:
            for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.write_eof()
        except h11.LocalProtocolError:  # a part of its response is sent already
            self.transport.abort()
        self.loop.call_later(_LINGER, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
