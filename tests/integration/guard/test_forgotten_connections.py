"""Idle connections that a firewall has forgotten: the next attempt replaces them before it uses them."""

from __future__ import annotations

import asyncio
import time

import pytest

from saga_activities import idle_connections
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.fault_proxy import fault_proxy
from tests.integration.guard.conftest import clock, new_address, open_guard_database

UNCHECKED = 0.2


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
async def test_an_attempt_does_not_wait_for_a_forgotten_connection(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
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
