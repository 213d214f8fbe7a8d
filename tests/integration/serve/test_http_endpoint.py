"""The HTTP server with clients that are slow, silent, malformed or numerous."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import h11
import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from saga_workers.runtime import http_server
from saga_workers.runtime.bounded_requests import RequestReader
from saga_workers.runtime.http_server import HttpServer, error_response, http_app, json_response
from sagas.errors import UsageError
from tests.helpers.free_ports import free_port
from tests.helpers.waiting import until

HOST = "127.0.0.1"


@contextlib.asynccontextmanager
async def serving(wait: asyncio.Event | None = None) -> AsyncIterator[HttpServer]:
    async def handle(request: Request) -> Response:
        path = request.scope["path"]
        if path == "/slow" and wait is not None:
            await wait.wait()
        if path == "/bug":
            raise ZeroDivisionError
        if path == "/large":
            return PlainTextResponse(b"x" * 50_000_000)
        if path == "/half":
            return json_response(200, {"half": "\ud800"})
        return json_response(200, {"path": path, "a": request.headers.get("a")})

    app = http_app([Route("/{path:path}", handle)])
    async with HttpServer(f"{HOST}:0", app, option="--listen", description="the endpoint") as server:
        yield server


def head(request_line: str, *headers: str) -> bytes:
    """The head of a request, with the Host that HTTP/1.1 demands."""
    return "\r\n".join([request_line, "Host: a", *headers, "", ""]).encode()


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
        sent = head("GET /a?x=1 HTTP/1.1", "A: b") + head("HEAD /b HTTP/1.1")
        sent += head("GET /c HTTP/1.1", "Connection: close")
        answer = await raw(server, sent)
        assert answer.count(b"HTTP/1.1 200 OK") == 3
        assert b'{"path": "/a", "a": "b"}' in answer
        assert b'"/b"' not in answer, "HEAD has no body"
        assert answer.lower().count(b"connection: close") == 1
        old = await raw(server, b"GET /a HTTP/1.0\r\n\r\n")
        assert b"Connection: close" in old


async def test_the_body_of_a_response_does_not_wait_until_its_head_is_acknowledged() -> None:
    """The system of a client that keeps its connection may take 40 ms for that."""
    async with serving() as server:
        reader, writer = await asyncio.open_connection(HOST, server.port)
        writer.write(head("GET /a HTTP/1.1"))
        await reader.readuntil(b"}")
        (connection,) = server._connections()
        used = connection.transport.get_extra_info("socket")
        assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        writer.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (head("POST /a HTTP/1.1", "Content-Length: 5") + b"hello", 405),
        (head("DELETE /a HTTP/1.1"), 405),
        (head("GET /a HTTP/1.1", "Content-Length: 5") + b"hello", 400),
        (head("GET /a HTTP/1.1", "Transfer-Encoding: chunked"), 400),
        (head("GET /a HTTP/1.1", "Transfer-Encoding: chunked") + b"0\r\n" + b"a:b\r\n" * 40_000 + b"\r\n", 431),
        (b"\x16\x03\x01 hello\r\n\r\n", 400),
        (head("GET a HTTP/1.1"), 400),
        (head("GET /a HTTP/1.1", "no colon"), 400),
        (head("GET /a HTTP/1.1", "X: " + "y" * 40_000), 431),
        (head("GET /bug HTTP/1.1", "Connection: close"), 500),
    ],
)
async def test_a_malformed_request_is_refused(sent: bytes, status: int) -> None:
    async with serving() as server:
        answer = await raw(server, sent)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:200]
        assert b'"error": "' in answer
        assert b"connection: close" in answer.lower()
        assert b"Traceback" not in answer
        assert b"200 OK" in await raw(server, head("GET /a HTTP/1.1", "Connection: close")), "it serves others"


async def test_half_a_surrogate_pair_in_a_response_is_replaced() -> None:
    async with serving() as server:
        assert b'{"half": "?"}' in await raw(server, head("GET /half HTTP/1.1", "Connection: close"))


async def test_a_silent_client_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT", 0.3)
    async with serving() as server:
        assert await raw(server, b"") == b""
        assert await raw(server, b"GET /a HTT") == b""
        assert (await raw(server, head("GET /a HTTP/1.1"))).count(b"200 OK") == 1


async def test_a_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SEND_TIMEOUT", 0.3)
    async with serving() as server:
        _, writer = await asyncio.open_connection(HOST, server.port, limit=1024)
        writer.write(head("GET /large HTTP/1.1"))
        await until(lambda: server.busy == 1)
        await until(lambda: server.busy == 0)
        writer.transport.abort()


async def test_a_head_that_grows_without_end_is_refused() -> None:
    async with serving() as server:
        answer = await raw(server, b"GET /a HTTP/1.1\r\nX: " + b"y" * 20_000)
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert b"connection: close" in answer.lower()


async def test_a_head_that_arrives_byte_by_byte_is_bounded_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT", 0.5)
    async with serving() as server:
        reader, writer = await asyncio.open_connection(HOST, server.port)
        writer.write(head("GET /a HTTP/1.1"))  # the first request of the connection is in time
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")

        async def send_slowly() -> None:
            with contextlib.suppress(ConnectionError):
                for _ in range(600):
                    writer.write(b"X")
                    await writer.drain()
                    await asyncio.sleep(0.05)

        sending = asyncio.create_task(send_slowly())
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 20)
        assert not sending.done(), "the server closed the connection while bytes arrived"
        sending.cancel()
        writer.close()


async def test_a_malformed_body_is_refused_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server:
        answer = await raw(server, head("GET /a HTTP/1.1", "Transfer-Encoding: chunked") + b"zzzz\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"200 OK" in await raw(server, head("GET /a HTTP/1.1", "Connection: close"))
    assert not [record for record in caplog.records if record.name.startswith(("saga", "uvicorn"))]


@pytest.mark.parametrize(("method", "status"), [("POST", 405), ("GET", 400)])
async def test_a_large_body_is_refused_unread(method: str, status: int) -> None:
    async with serving() as server:
        reader, writer = await asyncio.open_connection(HOST, server.port)
        writer.write(head(f"{method} /a HTTP/1.1", "Content-Length: 1000000000", "Expect: 100-continue"))
        answer = await asyncio.wait_for(reader.read(), 20)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        writer.close()


@pytest.mark.parametrize(("method", "status"), [("POST", 405), ("GET", 400)])
async def test_a_body_that_follows_its_head_does_not_cost_the_response(method: str, status: int) -> None:
    """Closing the connection before it has come would reset it."""
    async with serving() as server:
        reader, writer = await asyncio.open_connection(HOST, server.port)
        writer.write(head(f"{method} /a HTTP/1.1", "Content-Length: 20000"))
        await until(lambda: server.busy == 1)
        for _ in range(2):
            writer.write(b"x" * 10_000)
            await writer.drain()
        answer = await asyncio.wait_for(reader.read(), 20)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        writer.close()


async def test_a_body_that_does_not_come_is_not_awaited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_LINGER", 0.1)
    async with serving() as server:
        answer = await raw(server, head("POST /a HTTP/1.1", "Content-Length: 5") + b"x")
        assert answer.startswith(b"HTTP/1.1 405 ")


async def test_a_request_is_refused_only_while_all_connections_are_being_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 3)
    wait = asyncio.Event()
    async with serving(wait) as server:
        held = [asyncio.create_task(raw(server, head("GET /slow HTTP/1.1", "Connection: close"))) for _ in range(3)]
        await until(lambda: server.busy == 3)
        assert (await raw(server, head("GET /a HTTP/1.1"))).startswith(b"HTTP/1.1 503 ")
        wait.set()
        assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in await asyncio.gather(*held))
        answer = await raw(server, head("GET /a HTTP/1.1", "Connection: close"))
        assert answer.startswith(b"HTTP/1.1 200 ")


async def test_the_connection_that_has_been_idle_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 3)
    async with serving() as server:
        first, second, third = [await asyncio.open_connection(HOST, server.port) for _ in range(3)]
        for reader, writer in (third, second, first):
            writer.write(head("GET /a HTTP/1.1"))
            await reader.readuntil(b"\r\n\r\n")
            await reader.readline()
        assert (await raw(server, head("GET /a HTTP/1.1", "Connection: close"))).startswith(b"HTTP/1.1 200 ")
        with contextlib.suppress(ConnectionResetError):
            assert await third[0].read() == b""
        for reader, writer in (first, second):
            writer.write(head("GET /b HTTP/1.1", "Connection: close"))
            assert b'"/b"' in await reader.read()


async def test_a_client_that_does_not_read_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(http_server, "SEND_TIMEOUT", 60.0)
    async with serving() as server:
        held = [await asyncio.open_connection(HOST, server.port, limit=1024) for _ in range(2)]
        for _, writer in held:
            writer.write(head("GET /large HTTP/1.1"))
        await until(lambda: server.busy == 2)
        answer = await raw(server, head("GET /a HTTP/1.1", "Connection: close"))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert server.busy == 1
        for _, writer in held:
            writer.transport.abort()


async def test_requests_in_progress_are_answered_before_shutdown() -> None:
    wait = asyncio.Event()
    async with serving(wait) as server:
        asked = asyncio.create_task(raw(server, head("GET /slow HTTP/1.1")))
        resting = asyncio.create_task(raw(server, b""))
        await until(lambda: server.busy == 1)
        asyncio.get_running_loop().call_later(0.2, wait.set)
    assert b"200 OK" in await asked
    assert await resting == b""


@pytest.mark.slow
async def test_hundreds_of_concurrent_requests() -> None:
    async with serving() as server, httpx.AsyncClient(base_url=f"http://{HOST}:{server.port}", timeout=30) as client:
        answers = await asyncio.gather(*(client.get(f"/{n}") for n in range(300)))
        assert [answer.json()["path"] for answer in answers] == [f"/{n}" for n in range(300)]


async def test_an_invalid_or_used_address_gives_a_one_line_error() -> None:
    nothing = http_app([])
    host, port_, none = "its host is empty", "its port is not a number from 1 to 65535", "it has no port"
    wrong = {
        **{"127.0.0.1": none, "": host, "127.0.0.1:x": port_, "127.0.0.1:70000": port_, "127.0.0.1:-1": port_},
        **{"127.0.0.1:": port_, "a b:80": host, "::1:80": host, "[::1:80": host, "[nowhere]:80": host},
        "http://127.0.0.1:80": "it begins with a protocol",
    }
    for address, problem in wrong.items():
        with pytest.raises(UsageError, match=f"--listen must be host:port: {problem}"):
            HttpServer(address, nothing, option="--listen", description="the endpoint")
    for address in ("[::1]:0", "127.0.0.1:0", ":0", "localhost:65535"):
        HttpServer(address, nothing, option="--listen", description="the endpoint")
    port = free_port()
    first = HttpServer(f"{HOST}:{port}", nothing, option="--listen", description="the endpoint")
    async with first:
        with pytest.raises(UsageError, match=f"the endpoint cannot listen on {HOST}:{port}"):
            await HttpServer(f"{HOST}:{port}", nothing, option="--listen", description="the endpoint").__aenter__()


async def test_a_response_before_the_body_has_come_closes_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a client would send its next request over a connection that the server resets."""
    monkeypatch.setattr(http_server, "_LINGER", 0.1)

    async def refuse(_: Request) -> Response:
        return error_response(404, "there is no such saga")

    async def receive(request: Request) -> Response:
        return json_response(200, len(await request.body()))

    app = http_app([Route("/none", refuse, methods=["POST"]), Route("/a", receive, methods=["POST"])], max_body_bytes=9)
    async with HttpServer("127.0.0.1:0", app, option="--listen", description="the API") as server:
        closes: dict[tuple[str, str], bool] = {}
        for path, body in (("/none", "{"), ("/none", "{}"), ("/a", "{}")):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(head(f"POST {path} HTTP/1.1", "Content-Length: 2") + body.encode())
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
            closes[path, body] = b"connection: close" in answer.lower()
            writer.close()
    assert closes == {("/none", "{"): True, ("/none", "{}"): False, ("/a", "{}"): False}


async def receive_size(request: Request) -> Response:
    return json_response(200, len(await request.body()))


def receiving() -> HttpServer:
    """A server whose page answers with the size of the body."""
    app = http_app([Route("/a", receive_size, methods=["POST"])], max_body_bytes=2_000_000)
    return HttpServer(f"{HOST}:0", app, option="--listen", description="the API")


@pytest.mark.parametrize("path", ["/a", "/none"])
async def test_a_body_of_many_small_chunks_is_refused_before_all_are_read(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A chunk of one byte costs as much to read as a thousand bytes."""
    counted: list[int] = []
    count = RequestReader._count

    def counting(reader: RequestReader, data: h11.Data) -> None:
        counted.append(len(data.data))
        count(reader, data)

    monkeypatch.setattr(RequestReader, "_count", counting)
    async with receiving() as server:
        chunked = head(f"POST {path} HTTP/1.1", "Transfer-Encoding: chunked")
        answer = await raw(server, chunked + b"1\r\nx\r\n" * 20_000)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"too many small chunks; send chunks of 64 bytes or more" in answer
        assert len(counted) < 400


@pytest.mark.parametrize(("chunk", "number"), [(b"x", 256), (b"x" * 100, 5_000), (b"x" * 1_000_000, 1)])
async def test_a_body_in_chunks_is_read(chunk: bytes, number: int) -> None:
    async with receiving() as server:
        sent = head("POST /a HTTP/1.1", "Transfer-Encoding: chunked", "Connection: close")
        answer = await raw(server, sent + (b"%x\r\n%s\r\n" % (len(chunk), chunk)) * number + b"0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"%d\n" % (len(chunk) * number))


async def test_a_body_with_two_lengths_is_refused_and_nothing_behind_it_is_answered() -> None:
    async with receiving() as server:
        sent = head("POST /a HTTP/1.1", "Content-Length: 4", "Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n\r\n"
        answer = await raw(server, sent + head("POST /a HTTP/1.1", "Content-Length: 0"))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"either Content-Length or Transfer-Encoding" in answer
        assert b"connection: close" in answer.lower()
        assert answer.count(b"HTTP/1.1 ") == 1
