"""The outbox and the topics of a test; some files have an environment of their own of the same name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.integration.messaging.relay.relay_environment import OutboxEnvironment


@pytest_asyncio.fixture
async def env(postgres_server: DatabaseServer, kafka: Broker, tmp_path: Path) -> AsyncIterator[OutboxEnvironment]:
    """An outbox with its tables, and transactions of 15 seconds."""
    made = OutboxEnvironment(postgres_server, kafka, tmp_path, transaction_timeout=15.0)
    await made.make_tables()
    yield made
    made.close()
