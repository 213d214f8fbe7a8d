"""The payment service and connections to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from saga_activities.http import HttpConnection, http_settings
from sagas.settings.connections import HttpService, read_connection
from tests.helpers.payment_server import PaymentServer

Connect = Callable[..., HttpConnection]


@pytest.fixture
def server() -> Iterator[PaymentServer]:
    with PaymentServer() as running:
        yield running


@pytest.fixture
async def connect(tmp_path: Path) -> AsyncIterator[Connect]:
    """Makes connections as saga.toml would; they are closed after the test."""
    made: list[HttpConnection] = []

    def make(url: str, **options: Any) -> HttpConnection:
        service = read_connection({"kind": "http", "url": url, **options})
        assert isinstance(service, HttpService)
        made.append(HttpConnection(http_settings(service.model_copy(update={"name": "crm", "root": tmp_path}))))
        return made[-1]

    yield make
    for connection in made:
        await connection.aclose()


@pytest.fixture
def crm(connect: Connect, server: PaymentServer) -> HttpConnection:
    return connect(server.url)
