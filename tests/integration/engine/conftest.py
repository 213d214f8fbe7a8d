"""One environment per test, on the Temporal server of the session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from saga_activities import standing_pauses
from saga_activities.guard.schema import create_tables
from saga_activities.ledger.schema import create_ledger
from sagas.settings import SqlConnection
from sagas.settings.connections import async_url
from sagas.workflow import activity_calls
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
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


@pytest.fixture
async def postgres_env(
    patient_heartbeats: None, temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> AsyncIterator[Environment]:
    """The environment ``env`` with its guard in PostgreSQL, for a module that takes it as its own ``env``."""
    environment = await open_environment(tmp_path, temporal.address, new_database(postgres_server))
    yield environment
    await environment.engine.dispose()


@pytest.fixture
async def orders(env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncEngine]:
    """The database of the ledger of ``env``, whose worker reads it before each attempt."""
    monkeypatch.setattr(standing_pauses, "MAX_AGE", 0.0)
    url = async_url(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path)
    engine = create_async_engine(url)
    await create_tables(engine)
    await create_ledger(engine)
    env.connections["records"] = SqlConnection(name="records", root=tmp_path, url_setting=url)
    env.ledger = "records"
    yield engine
    await engine.dispose()
