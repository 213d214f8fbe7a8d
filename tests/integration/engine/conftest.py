"""One environment per test, on the Temporal server of the session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import Environment, open_environment


@pytest.fixture
async def env(temporal: TemporalServer, tmp_path: Path) -> AsyncIterator[Environment]:
    """Actions scripted by the test, and a database that stores their effects."""
    found = await open_environment(tmp_path, temporal.address)
    yield found
    await found.engine.dispose()
