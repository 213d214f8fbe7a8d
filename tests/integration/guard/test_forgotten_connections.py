"""Idle connections that a firewall has forgotten: the next attempt replaces them before it uses them."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from saga_activities import idle_connections
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.fault_proxy import fault_proxy
from tests.integration.guard.conftest import clock, new_address, open_guard_database

UNCHECKED = 0.2


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
async def test_an_attempt_does_not_wait_for_a_forgotten_connection(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(idle_connections, "_UNCHECKED", UNCHECKED)
    server: DatabaseServer = request.getfixturevalue(f"{kind}_server")
    async with fault_proxy(server.port) as proxy:
        opened = await open_guard_database(kind, server.url(port=proxy.port))
        guard = opened.guard

        async def attempt() -> None:
            opened.current = new_address()
            outcome = await guard.do(opened.current, "h", opened.body("applied"), **clock())
            assert outcome.kind == "done", outcome
            assert (await opened.state(opened.current)).applied == 1

        try:
            await asyncio.gather(*(guard.seal(new_address(), **clock()) for _ in range(3)))
            await attempt()
            await asyncio.sleep(UNCHECKED * 1.5)
            proxy.forget()
            started = time.monotonic()
            await attempt()
            waited = time.monotonic() - started
            assert 0.9 < waited < 8.0, waited  # `clock` gives an attempt far more
            await attempt()
        finally:
            await opened.connections.close()
    assert not [record.message for record in caplog.records if record.exc_info], "that is no bug"


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
async def test_the_system_ends_a_connection_whose_peer_is_gone(kind: str, request: pytest.FixtureRequest) -> None:
    """The options of the sockets: a proxy on this machine would acknowledge what it loses."""
    server: DatabaseServer = request.getfixturevalue(f"{kind}_server")
    opened = await open_guard_database(kind, server.url())
    async with opened.guard.engine.connect() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        if kind == "postgres":
            its = socket.fromfd(driver.fileno(), socket.AF_INET, socket.SOCK_STREAM)
        else:
            its = driver._transport.get_extra_info("socket").dup()
    with its:
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        assert its.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert [its.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [2, 1, 3, 5000]
    await opened.connections.close()
