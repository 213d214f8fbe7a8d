from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka_broker import Broker
from tests.servers import DatabaseServer, postgres


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all tests of this process: make topics of your own, and never kill it."""
    broker = Broker(tmp_path_factory.mktemp("kafka"))
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[DatabaseServer]:
    """One PostgreSQL for all tests of this process: make a database of your own."""
    with postgres() as server:
        yield server
