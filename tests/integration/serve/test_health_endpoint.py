"""The health endpoint of a process, while clients are idle or slow and when the process is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from saga_workers.runtime import http_server
from saga_workers.runtime.health import health_server
from saga_workers.runtime.http_server import HttpServer
from saga_workers.runtime.shutdown import stop_on_signals
from tests.helpers.database_servers import HOST
from tests.helpers.waiting import until


def open_health(stop: asyncio.Event, why: str | None = None) -> HttpServer:
    async def ready() -> str | None:
        return why

    counter = Counter("some_total", "x" * 20_000_000, registry=CollectorRegistry())
    return health_server(f"{HOST}:0", stop=stop, ready=ready, metrics=(counter,))


async def get(server: HttpServer, path: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{server.port}", timeout=10) as client:
        return await client.get(path)


async def test_the_three_pages() -> None:
    async with open_health(asyncio.Event()) as server:
        for path, text in (("/livez", "ok\n"), ("/readyz", "ready\n")):
            answer = await get(server, path)
            assert (answer.status_code, answer.text) == (200, text)
        answer = await get(server, "/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "\nsome_total 0.0\n" in answer.text
        answer = await get(server, "/metric")
        assert (answer.status_code, "/livez, /metrics, /readyz" in answer.json()["error"]) == (404, True)
    async with open_health(asyncio.Event(), "Temporal does not answer") as server:
        answer = await get(server, "/readyz")
        assert (answer.status_code, answer.text) == (503, "Temporal does not answer\n")


@pytest.mark.parametrize("sent", [b"", b"GET /livez HTTP/1.1\r\nHo"])
async def test_more_connections_than_there_is_room_for_do_not_keep_probes_out(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 5)
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT", 60.0)
    async with open_health(asyncio.Event()) as server:
        held = []
        for _ in range(8):
            _, writer = await asyncio.open_connection(HOST, server.port, limit=1024)
            writer.write(sent)
            held.append(writer)
        for _ in range(8):
            assert (await get(server, "/livez")).status_code == 200
        for writer in held:
            writer.transport.abort()


async def test_idle_and_slow_clients_do_not_delay_livez(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "SEND_TIMEOUT", 60.0)
    async with open_health(asyncio.Event()) as server:
        clients = [await asyncio.open_connection(HOST, server.port, limit=1024) for _ in range(200)]
        for _, writer in clients[:50]:
            writer.write(b"GET /livez HTTP/1.1\r\nHo")  # a head that does not end
        for _, writer in clients[50:54]:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")  # a response of megabytes that nobody reads
        await until(lambda: server.busy == 4)
        for _ in range(5):
            assert (await get(server, "/livez")).status_code == 200
        assert server.busy == 4, "the slow clients are still served"
        for _, writer in clients:
            writer.transport.abort()


async def test_signals_stay_with_the_process() -> None:
    stop = stop_on_signals()
    try:
        handler = signal.getsignal(signal.SIGTERM)
        async with open_health(stop) as server:
            assert (await get(server, "/readyz")).status_code == 200
            assert signal.getsignal(signal.SIGTERM) is handler
            os.kill(os.getpid(), signal.SIGTERM)
            await until(stop.is_set)
            answer = await get(server, "/readyz")
            assert (answer.status_code, answer.text) == (503, "stopping\n")
            assert (await get(server, "/livez")).status_code == 200, "it answers until its process has stopped"
            port = server.port
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(HOST, port)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)
