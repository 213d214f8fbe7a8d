"""An environment for notifications: sagas, and a receiver of signed webhooks that can be down."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from saga_workers.client import Client
from sagas.settings import HttpService, Secret
from tests.helpers.free_ports import free_port
from tests.helpers.payment_server import PaymentServer
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, open_environment

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@dataclass
class Receiver:
    """A webhook receiver in a process of its own, at an address that stays the same."""

    server: PaymentServer

    def received(self) -> list[dict[str, Any]]:
        """The events of all requests that came, verified as a receiver does it, in their order."""
        return [
            Webhook(SECRET).verify(request["body"], request["headers"])
            for request in self.server.ledger()["requests"]
            if request["path"] == "/echo"
        ]

    def headers(self, name: str) -> list[str]:
        return [request["headers"][name] for request in self.server.ledger()["requests"] if request["path"] == "/echo"]


@pytest.fixture
async def env(temporal: TemporalServer, tmp_path: Path) -> AsyncIterator[Environment]:
    """Actions scripted by the test; ``env.connections`` contains the receiver."""
    environment = await open_environment(tmp_path, temporal.address)
    yield environment
    await environment.engine.dispose()


@pytest.fixture
def receiver(env: Environment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A receiver that is not started (``receiver.server.start()``); the connection ``hook`` leads to it."""
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    port = free_port()
    server = PaymentServer("--port", str(port))
    env.connections["hook"] = HttpService(
        name="hook",
        root=env.folder,
        url_setting=f"http://127.0.0.1:{port}",
        signing_secret=Secret("env", "HOOK_SECRET"),
    )
    yield Receiver(server)
    server.stop()


def notified(story: dict[str, Any]) -> dict[str, str]:
    """The states of the notifications in a view."""
    return {row["id"]: row["state"] for row in story["notifications"]}


async def settled(client: Client, saga_id: str) -> dict[str, Any]:
    """The story when no notification is under way any more."""

    async def is_settled() -> dict[str, Any] | None:
        story = await client.show(saga_id)
        return None if "PENDING" in notified(story).values() else story

    return await until(is_settled)
