"""One world per test, on the Temporal server of the session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import World, open_world


@pytest.fixture
async def world(temporal: TemporalServer, tmp_path: Path) -> AsyncIterator[World]:
    """Actions that behave as the test says, and a database that remembers their effects."""
    found = await open_world(tmp_path, temporal.address)
    yield found
    await found.engine.dispose()
