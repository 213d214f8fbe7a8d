"""The upkeep of the ledger waits for locks for a limited time, and the worker's log names who holds them."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from saga_activities.connections import DatabaseConnections
from saga_activities.ledger.schema import SETUP_LOCK
from saga_workers.ledger.upkeep import maintain_ledger
from saga_workers.runtime import lock_waits
from saga_workers.runtime.databases import set_up_database
from sagas.settings.connections import SqlConnection
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.integration.ledger.conftest import write_project

DAY = 86400.0


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize(
    ("held", "by"),
    [
        (f"select pg_advisory_lock({SETUP_LOCK})", " by an advisory lock, which every role that may connect can take"),
        ("begin; lock table saga_claim", ""),
    ],
    ids=["advisory lock", "table"],
)
async def test_the_holder_of_a_lock_is_named(
    postgres_server: DatabaseServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    held: str,
    by: str,
) -> None:
    monkeypatch.setattr(lock_waits, "_TIMEOUT", 3)
    monkeypatch.setattr(lock_waits, "_REPORT_EVERY", 0.3)
    url = new_database(postgres_server)
    connection = write_project(tmp_path / "project", "127.0.0.1:1", url).settings.connection("shop")
    assert isinstance(connection, SqlConnection)
    await set_up_database(connection)
    databases = DatabaseConnections([connection])
    with psycopg.connect(url, autocommit=True, application_name="report") as holder:
        holder.execute(sql.SQL(held))  # pyright: ignore[reportArgumentType]
        with caplog.at_level(logging.WARNING, "saga.upkeep"):
            assert await maintain_ledger(databases, "shop", DAY, time.time()) is None
        [warning] = [record.getMessage() for record in caplog.records if record.name == "saga.upkeep"]
        assert warning.startswith(
            "ledger not purged: shop: the upkeep of the ledger has waited 3 s for a lock; "
            f"it is held by process {holder.info.backend_pid} (user saga, report)"
        )
        assert warning.endswith(by)
    assert await maintain_ledger(databases, "shop", DAY, time.time()) is not None
    await databases.close()
