"""One PostgreSQL for the Spark tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import DatabaseServer, postgres


@pytest.fixture(scope="session")
def server() -> Iterator[DatabaseServer]:
    with postgres() as found:
        yield found
