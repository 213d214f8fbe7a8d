from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.database_servers import DatabaseServer, postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[DatabaseServer]:
    """One PostgreSQL for all tests of this process: make a database of your own."""
    with postgres() as server:
        yield server
