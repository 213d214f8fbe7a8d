"""A set-up of tables that exist waits for no transaction that writes to them, and stops none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from saga_workers.runtime import databases
from saga_workers.runtime.databases import set_up_database
from sagas.settings import SqlConnection
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database


async def test_a_repeated_setup_does_not_wait_for_open_transactions(
    postgres_server: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database(postgres_server)
    keeps: Any = {"keeps_outputs": True, "keeps_ledger": True, "keeps_locks": True, "keeps_enqueued": True}
    shop = SqlConnection(name="shop", root=tmp_path, url_setting=url, **keeps)
    await set_up_database(shop)
    with psycopg.connect(url.replace("+psycopg", "")) as application:
        tables = application.execute("select tablename from pg_tables where tablename like 'saga%'").fetchall()
        assert len(tables) > 10
        for (table,) in tables:
            # An INSERT, UPDATE or DELETE takes this lock.
            application.execute(sql.SQL("lock table {} in row exclusive mode").format(sql.Identifier(table)))
        monkeypatch.setattr(databases, "_SETUP_TIMEOUT", 5.0)
        await set_up_database(shop)
