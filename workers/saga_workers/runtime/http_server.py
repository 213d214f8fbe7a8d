"""A small HTTP/1.1 server (GET and HEAD only) for long-running processes, with health, readiness and metrics pages.

Clients are untrusted: request heads are limited in size and time, responses have to be read in time, connections are
limited in number, and bodies are never read. Connections are reused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry, Metric, generate_latest
from temporalio.client import Client
from temporalio.service import RPCError

from sagas.errors import UsageError

log = logging.getLogger("saga.http")

MAX_HEAD_BYTES = 16 * 1024
"""Maximum bytes of a request line and its headers."""

HEAD_TIMEOUT = 10.0
"""Seconds until a request's head must be complete; also the idle time of a connection between two requests."""

SEND_TIMEOUT = 15.0
"""Seconds until the client must have read a response."""

MAX_CONNECTIONS = 512
"""At the same time; further ones get 503."""

SHUTDOWN_GRACE = 5.0
"""Seconds that responses under way have to end when the server stops."""

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """``path`` as it was sent, percent-encoded and without the query; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerResponse:
    """A response; ``headers`` are those besides type and length."""

    status: int
    content: bytes
    type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


RequestHandler = Callable[[ServerRequest], Awaitable[ServerResponse]]


def json_response(status: int, value: Any, headers: Mapping[str, str] | None = None) -> ServerResponse:
    return ServerResponse(status, json.dumps(value, ensure_ascii=False).encode() + b"\n", headers=headers or {})


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> ServerResponse:
    """A response with an error message."""
    return json_response(status, {"error": message}, headers)


class HttpServer:
    """Listens on ``address`` (HOST:PORT) while it is open. ``option`` names the source of the address in errors."""

    def __init__(self, address: str, handle: RequestHandler, *, option: str, description: str) -> None:
        host, _, port = address.rpartition(":")
        if not port.isdecimal() or int(port) > 65_535:
            raise UsageError(f"{option} takes HOST:PORT, not {address!r}", help=f"for example {option} 127.0.0.1:8080")
        self._host, self._port = host.strip("[]") or "127.0.0.1", int(port)
        self._handle = handle
        self._option = option
        self._description = description
        self._server: asyncio.Server | None = None
        self._idle: set[asyncio.Task[Any]] = set()
        self._in_progress: set[asyncio.Task[Any]] = set()
        self._closing = False

    @property
    def port(self) -> int:
        """The port it listens on; the assigned one if the address has port 0."""
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    @property
    def busy(self) -> int:
        """The number of requests being answered."""
        return len(self._in_progress)

    async def __aenter__(self) -> HttpServer:
        try:
            self._server = await asyncio.start_server(
                self._handle_connection, self._host, self._port, limit=MAX_HEAD_BYTES, backlog=MAX_CONNECTIONS
            )
        except OSError as error:
            raise UsageError(
                f"{self._description} cannot listen on {self._host}:{self._port}: {error.strerror or error}",
                help=f"choose another port with {self._option} HOST:PORT",
            ) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        assert self._server is not None
        self._server.close()
        for task in tuple(self._idle):
            task.cancel()
        if self._in_progress:
            await asyncio.wait(self._in_progress, timeout=SHUTDOWN_GRACE)
        for task in tuple(self._in_progress):
            task.cancel()

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._idle) + len(self._in_progress) >= MAX_CONNECTIONS:
                await _send(writer, error_response(503, "too many connections at once; try again"), keep=False)
                return
            keep = True
            while keep and not self._closing:
                self._idle.add(task)
                try:
                    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_TIMEOUT)
                finally:
                    self._idle.discard(task)
                self._in_progress.add(task)
                keep = await self._handle_request(head, writer)
                self._in_progress.discard(task)
        except asyncio.LimitOverrunError:
            sentence = f"the head of a request may have {MAX_HEAD_BYTES} bytes"
            with contextlib.suppress(TimeoutError, ConnectionError):
                await _send(writer, error_response(431, sentence), keep=False)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            return  # the client has gone or was too slow: nobody waits for a response
        except asyncio.CancelledError:
            if not self._closing:
                raise
        finally:
            self._in_progress.discard(task)
            writer.close()

    async def _handle_request(self, head: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; True if the connection may be reused."""
        request = _parse(head)
        if request is None:
            await _send(writer, error_response(400, "this is no HTTP request"), keep=False)
            return False
        keep = _keeps_alive(request, head) and not self._closing
        if request.method not in ("GET", "HEAD"):
            response = error_response(405, "this endpoint is read-only: GET and HEAD", {"Allow": "GET, HEAD"})
            keep = False  # its body, if there is one, is not read
        elif request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
            response, keep = error_response(400, f"a {request.method} request has no body here"), False
        else:
            try:
                response = await self._handle(request)
            except Exception:
                log.exception("a request for %s could not be answered: this is a bug in saga", request.path)
                response = error_response(500, "this is a bug in saga; its log has more")
        await _send(writer, response, keep=keep, body=request.method != "HEAD")
        return keep


def _parse(head: bytes) -> ServerRequest | None:
    """The request of a head; None if it is malformed."""
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
    return ServerRequest(words[0], words[1].partition("?")[0], headers)


def _keeps_alive(request: ServerRequest, head: bytes) -> bool:
    """HTTP/1.1 keeps a connection by default, HTTP/1.0 closes it."""
    said = request.headers.get("connection", "").lower()
    old = head.split(b"\r\n", 1)[0].endswith(b"HTTP/1.0")
    return said == "keep-alive" if old else said != "close"


async def _send(writer: asyncio.StreamWriter, response: ServerResponse, *, keep: bool, body: bool = True) -> None:
    lines = [
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}",
        f"Content-Type: {response.type}",
        f"Content-Length: {len(response.content)}",
        f"Connection: {'keep-alive' if keep else 'close'}",
        *(f"{name}: {value}" for name, value in response.headers.items()),
    ]
    writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (response.content if body else b""))
    try:
        await asyncio.wait_for(writer.drain(), SEND_TIMEOUT)
    except TimeoutError:
        writer.transport.abort()  # close() would wait until the client has read everything
        raise


# The standard pages: /livez, /readyz, /metrics.


PageContent = tuple[int, str]
PageHandler = Callable[[], Awaitable[PageContent]]
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""The version of Prometheus' text format, for /metrics; harmless on other pages."""


class HealthServer(HttpServer):
    """Serves plain-text pages. ``pages``: path → handler that returns (status, text)."""

    def __init__(self, address: str, pages: Mapping[str, PageHandler]) -> None:
        super().__init__(address, self._serve_page, option="--health", description="the health endpoint")
        self._pages = pages

    async def _serve_page(self, request: ServerRequest) -> ServerResponse:
        page = self._pages.get(request.path)
        if page is None:
            return _text_response(404, f"there is no page {request.path}; there are {', '.join(sorted(self._pages))}\n")
        return _text_response(*await page())


def _text_response(status: int, text: str) -> ServerResponse:
    return ServerResponse(status, text.encode(), PROMETHEUS_TEXT)


async def live_page() -> PageContent:
    """The page /livez: the process answers."""
    return 200, "ok\n"


async def temporal_ready_page(client: Client) -> PageContent:
    """The page /readyz of a process that needs Temporal and nothing else."""
    try:
        await client.service_client.check_health(timeout=timedelta(seconds=2))
    except RPCError as error:
        return 503, f"Temporal does not answer: {error.message}\n"
    return 200, "ready\n"


# Pages of a process that consists of several tasks.


ReadinessCheck = Callable[[], Awaitable[str | None]]
"""Why the process cannot work at present, as a message; None if it can."""


def health_pages(stop: asyncio.Event, ready: ReadinessCheck, registry: CollectorRegistry) -> dict[str, PageHandler]:
    """/livez, /readyz and /metrics."""

    async def live() -> PageContent:
        return 200, "ok\n"

    async def answer_ready() -> PageContent:
        why = "stopping" if stop.is_set() else await ready()
        return (200, "ready\n") if why is None else (503, f"{why}\n")

    async def metrics() -> PageContent:
        return 200, generate_latest(registry).decode()

    return {"/livez": live, "/readyz": answer_ready, "/metrics": metrics}


def without_created(registry: CollectorRegistry) -> Iterator[Metric]:
    """The metrics of a registry without the ``_created`` samples that Prometheus' client adds to every counter."""
    for metric in registry.collect():
        shown = Metric(metric.name, metric.documentation, metric.type, metric.unit)
        shown.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
        yield shown
