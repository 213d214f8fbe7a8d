"""The HTTP server with clients that are slow, silent, malformed or numerous."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest

from saga_workers.runtime import http_server
from saga_workers.runtime.http_server import HttpServer, ServerRequest, ServerResponse, json_response
from sagas.errors import UsageError
from tests.helpers.database_servers import free_port
from tests.integration.engine.environment import until

HOST = "127.0.0.1"


@contextlib.asynccontextmanager
async def serving(wait: asyncio.Event | None = None) -> AsyncIterator[HttpServer]:
    async def handle(request: ServerRequest) -> ServerResponse:
        if request.path == "/slow" and wait is not None:
            await wait.wait()
        if request.path == "/bug":
            raise ZeroDivisionError
        if request.path == "/large":
            return ServerResponse(200, b"x" * 50_000_000, "text/plain")
        return json_response(200, {"path": request.path, "a": request.headers.get("a")})

    async with HttpServer(f"{HOST}:0", handle, option="--listen", description="the endpoint") as server:
        yield server


async def raw(server: HttpServer, sent: bytes, timeout: float = 20.0) -> bytes:
    """Everything the server answers until it closes."""
    reader, writer = await asyncio.open_connection(HOST, server.port)
    writer.write(sent)
    try:
        return await asyncio.wait_for(reader.read(), timeout)
    finally:
        writer.close()


async def test_one_connection_takes_many_requests() -> None:
    async with serving() as server:
        sent = (
            b"GET /a?x=1 HTTP/1.1\r\nA: b\r\n\r\nHEAD /b HTTP/1.1\r\n\r\nGET /c HTTP/1.1\r\nConnection: close\r\n\r\n"
        )
        answer = await raw(server, sent)
        assert answer.count(b"HTTP/1.1 200 OK") == 3
        assert b'{"path": "/a", "a": "b"}' in answer
        assert b'"/b"' not in answer, "HEAD has no body"
        assert answer.count(b"Connection: keep-alive") == 2
        old = await raw(server, b"GET /a HTTP/1.0\r\n\r\n")
        assert b"Connection: close" in old


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 405),
        (b"DELETE /a HTTP/1.1\r\n\r\n", 405),
        (b"GET /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 400),
        (b"GET /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"\x16\x03\x01 hello\r\n\r\n", 400),
        (b"GET a HTTP/1.1\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nX: " + b"y" * 40_000 + b"\r\n\r\n", 431),
        (b"GET /bug HTTP/1.1\r\nConnection: close\r\n\r\n", 500),
    ],
)
async def test_a_malformed_request_is_refused(sent: bytes, status: int) -> None:
    async with serving() as server:
        answer = await raw(server, sent)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:200]
        assert b'"error": "' in answer
        assert b"Connection: close" in answer
        assert b"Traceback" not in answer
        assert b"200 OK" in await raw(server, b"GET /a HTTP/1.1\r\nConnection: close\r\n\r\n"), "it serves others"


async def test_a_silent_client_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT", 0.3)
    async with serving() as server:
        assert await raw(server, b"") == b""
        assert await raw(server, b"GET /a HTT") == b""
        assert (await raw(server, b"GET /a HTTP/1.1\r\n\r\n")).count(b"200 OK") == 1


async def test_a_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SEND_TIMEOUT", 0.3)
    async with serving() as server:
        _, writer = await asyncio.open_connection(HOST, server.port, limit=1024)
        writer.write(b"GET /large HTTP/1.1\r\n\r\n")
        await until(lambda: server.busy == 1)
        await until(lambda: server.busy == 0)
        writer.transport.abort()


async def test_too_many_connections_get_503_until_some_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 3)
    async with serving() as server:
        held = [await asyncio.open_connection(HOST, server.port) for _ in range(3)]
        for _, writer in held:
            writer.write(b"GET /a HTTP/1.1\r\n\r\n")
        for reader, _ in held:
            await reader.readuntil(b"\r\n\r\n")
        assert (await raw(server, b"GET /a HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
        for _, writer in held:
            writer.close()
        for _ in range(100):
            answer = await raw(server, b"GET /a HTTP/1.1\r\nConnection: close\r\n\r\n")
            if answer.startswith(b"HTTP/1.1 200 "):
                break
            await asyncio.sleep(0.05)
        assert answer.startswith(b"HTTP/1.1 200 ")


async def test_requests_in_progress_are_answered_before_shutdown() -> None:
    wait = asyncio.Event()
    async with serving(wait) as server:
        asked = asyncio.create_task(raw(server, b"GET /slow HTTP/1.1\r\n\r\n"))
        resting = asyncio.create_task(raw(server, b""))
        await until(lambda: server.busy == 1)
        asyncio.get_running_loop().call_later(0.2, wait.set)
    assert b"200 OK" in await asked
    assert await resting == b""


async def test_hundreds_of_concurrent_requests() -> None:
    async with serving() as server, httpx.AsyncClient(base_url=f"http://{HOST}:{server.port}", timeout=30) as client:
        answers = await asyncio.gather(*(client.get(f"/{n}") for n in range(300)))
        assert [answer.json()["path"] for answer in answers] == [f"/{n}" for n in range(300)]


async def test_an_invalid_or_used_address_gives_a_one_line_error() -> None:
    async def nothing(request: ServerRequest) -> ServerResponse:
        return json_response(200, None)

    for address in ("127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", ""):
        with pytest.raises(UsageError, match="--listen takes HOST:PORT"):
            HttpServer(address, nothing, option="--listen", description="the endpoint")
    port = free_port()
    first = HttpServer(f"{HOST}:{port}", nothing, option="--listen", description="the endpoint")
    async with first:
        with pytest.raises(UsageError, match=f"the endpoint cannot listen on {HOST}:{port}"):
            await HttpServer(f"{HOST}:{port}", nothing, option="--listen", description="the endpoint").__aenter__()
