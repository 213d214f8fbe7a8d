"""A small HTTP/1.1 server for what a long-running process tells others: GET and HEAD, and nothing else.

It trusts nobody: heads are small and have to come in time, answers have to be taken in time, there are so many
connections at most, and bodies are never read. One connection takes one request after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from sagas.errors import UsageError

log = logging.getLogger("saga.http")

HEAD_LIMIT = 16 * 1024
"""Bytes of a request's line and headers."""

HEAD_PATIENCE = 10.0
"""Seconds until a request's head must be there; also how long a connection may rest between two requests."""

SEND_PATIENCE = 15.0
"""Seconds until an answer must be taken."""

CONNECTIONS = 512
"""At once; one more is told to come back later."""

GRACE = 5.0
"""Seconds that answers under way may take when the server stops."""

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Request:
    """``path`` as it was sent, still percent-encoded, without its query; names of headers in small letters."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """An answer; ``headers`` are those beside type and length."""

    status: int
    content: bytes
    type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Response]]


def json_response(status: int, value: Any, headers: Mapping[str, str] | None = None) -> Response:
    return Response(status, json.dumps(value, ensure_ascii=False).encode() + b"\n", headers=headers or {})


def told(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that is one sentence of what is wrong."""
    return json_response(status, {"error": sentence}, headers)


class HttpServer:
    """Listens on ``address`` (HOST:PORT) while it is open. ``option`` is where the address was given, for errors."""

    def __init__(self, address: str, handle: Handler, *, option: str, what: str) -> None:
        host, _, port = address.rpartition(":")
        if not port.isdecimal() or int(port) > 65_535:
            raise UsageError(f"{option} takes HOST:PORT, not {address!r}", help=f"for example {option} 127.0.0.1:8080")
        self._host, self._port = host.strip("[]") or "127.0.0.1", int(port)
        self._handle = handle
        self._option = option
        self._what = what
        self._server: asyncio.Server | None = None
        self._resting: set[asyncio.Task[Any]] = set()
        self._answering: set[asyncio.Task[Any]] = set()
        self._closing = False

    @property
    def port(self) -> int:
        """The port it listens on, also when any was asked for (0)."""
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    @property
    def busy(self) -> int:
        """How many requests are being answered."""
        return len(self._answering)

    async def __aenter__(self) -> HttpServer:
        try:
            self._server = await asyncio.start_server(
                self._serve, self._host, self._port, limit=HEAD_LIMIT, backlog=CONNECTIONS
            )
        except OSError as error:
            raise UsageError(
                f"{self._what} cannot listen on {self._host}:{self._port}: {error.strerror or error}",
                help=f"choose another port with {self._option} HOST:PORT",
            ) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        assert self._server is not None
        self._server.close()
        for task in tuple(self._resting):
            task.cancel()
        if self._answering:
            await asyncio.wait(self._answering, timeout=GRACE)
        for task in tuple(self._answering):
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._resting) + len(self._answering) >= CONNECTIONS:
                await _send(writer, told(503, "too many connections at once; try again"), keep=False)
                return
            keep = True
            while keep and not self._closing:
                self._resting.add(task)
                try:
                    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_PATIENCE)
                finally:
                    self._resting.discard(task)
                self._answering.add(task)
                keep = await self._answer(head, writer)
                self._answering.discard(task)
        except asyncio.LimitOverrunError:
            sentence = f"the head of a request may have {HEAD_LIMIT} bytes"
            with contextlib.suppress(TimeoutError, ConnectionError):
                await _send(writer, told(431, sentence), keep=False)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            return  # whoever asked went away, or was too slow: nobody waits for an answer
        except asyncio.CancelledError:
            if not self._closing:
                raise
        finally:
            self._answering.discard(task)
            writer.close()

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; True when the connection may be used again."""
        request = _parse(head)
        if request is None:
            await _send(writer, told(400, "this is no HTTP request"), keep=False)
            return False
        keep = _keeps(request, head) and not self._closing
        if request.method not in ("GET", "HEAD"):
            response = told(405, "this endpoint is read-only: GET and HEAD", {"Allow": "GET, HEAD"})
            keep = False  # its body, if there is one, is not read
        elif request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
            response, keep = told(400, f"a {request.method} request has no body here"), False
        else:
            try:
                response = await self._handle(request)
            except Exception:
                log.exception("a request for %s could not be answered: this is a bug in saga", request.path)
                response = told(500, "this is a bug in saga; its log has more")
        await _send(writer, response, keep=keep, body=request.method != "HEAD")
        return keep


def _parse(head: bytes) -> Request | None:
    """The request of a head; None when it is none."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        return None
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            return None
        headers[name.lower()] = value.strip()
    return Request(words[0], words[1].partition("?")[0], headers)


def _keeps(request: Request, head: bytes) -> bool:
    """HTTP/1.1 keeps a connection unless somebody says otherwise, HTTP/1.0 drops it."""
    said = request.headers.get("connection", "").lower()
    old = head.split(b"\r\n", 1)[0].endswith(b"HTTP/1.0")
    return said == "keep-alive" if old else said != "close"


async def _send(writer: asyncio.StreamWriter, response: Response, *, keep: bool, body: bool = True) -> None:
    lines = [
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}",
        f"Content-Type: {response.type}",
        f"Content-Length: {len(response.content)}",
        f"Connection: {'keep-alive' if keep else 'close'}",
        *(f"{name}: {value}" for name, value in response.headers.items()),
    ]
    writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (response.content if body else b""))
    try:
        await asyncio.wait_for(writer.drain(), SEND_PATIENCE)
    except TimeoutError:
        writer.transport.abort()  # closing would go on waiting until all of it is taken
        raise
