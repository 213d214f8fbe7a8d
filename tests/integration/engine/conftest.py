"""One environment per test, on the Temporal server of the session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sagas.workflow import activity_calls
from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import Environment, open_environment


@pytest.fixture
def patient_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker in this process does not die, and while it is busy its attempts must not be repeated and counted."""
    monkeypatch.setattr(activity_calls, "GUARDED_HEARTBEAT_TIMEOUT", 25.0)


@pytest.fixture
async def env(patient_heartbeats: None, temporal: TemporalServer, tmp_path: Path) -> AsyncIterator[Environment]:
    """Actions scripted by the test, and a database that stores their effects."""
    environment = await open_environment(tmp_path, temporal.address)
    yield environment
    await environment.engine.dispose()
