"""While somebody holds a lock on a table of the ledger, as a migration does, commands end after a time and say so."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from saga_activities.connections import engine_url
from saga_workers.ledger.run_ledger import LedgerUnavailable, open_ledger
from saga_workers.runtime import lock_waits
from saga_workers.runtime.databases import set_up_database
from saga_workers.views.locks import list_locks
from sagas.errors import SagaError
from sagas.settings.connections import SqlConnection
from tests.helpers.new_databases import new_url
from tests.integration.ledger.conftest import write_project

HELD = {"postgresql": "lock table saga_run, saga_lock", "mariadb": "lock tables saga_run write, saga_lock write"}


@pytest.mark.parametrize("kind", HELD)
async def test_a_command_does_not_wait_for_its_end(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_waits, "_TIMEOUT", 1)
    url = await new_url(kind, request, tmp_path)
    project = write_project(tmp_path / "project", "127.0.0.1:1", url)
    connection = project.settings.connection("shop")
    assert isinstance(connection, SqlConnection)
    await set_up_database(connection)
    ledger = open_ledger(project.settings)
    assert await ledger.find("s-1") is None
    holder = create_async_engine(engine_url("shop", url))
    async with holder.connect() as session:
        await session.exec_driver_sql(HELD[kind])
        begun = time.monotonic()
        with pytest.raises(LedgerUnavailable, match=r"ledger in shop .*: a lock that another session holds"):
            await ledger.find("s-1")
        with pytest.raises(SagaError, match="a lock that another session holds") as refused:
            await list_locks(project.settings)
        assert str(refused.value.help).startswith("wait until that session has ended")
        assert time.monotonic() - begun < 10
        await session.rollback()
    await holder.dispose()
    assert await ledger.find("s-1") is None
    await ledger.close()
