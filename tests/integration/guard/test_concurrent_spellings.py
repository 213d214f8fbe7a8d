"""Concurrent sagas that write the key of one row in different ways: no change is lost, and no undo undoes another's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from saga_activities.automatic import row_locks
from sagas.protocol.outcomes import Outcome
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import database_url, open_guard_database

pytestmark = pytest.mark.slow

SPELLINGS = [
    ("postgres", "numeric", "primary key (k)", "1.0", "1.00"),
    ("postgres", "interval", "primary key (k)", "'1 mon'", "'30 days'"),
    ("postgres", "numrange", "primary key (k)", "'[1.0,2)'", "'[1,2.0)'"),
    ("postgres", "numrange", "h int default 1, primary key (h, k without overlaps)", "'[1.0,2)'", "'[1,2.0)'"),
    ("mariadb", "varchar(20)", "primary key (k)", "'Ada'", "'aDA '"),
    ("mariadb", "varchar(20) collate utf8mb4_unicode_ci", "primary key (k)", "'Straße'", "'STRASSE'"),
    ("mariadb", "decimal(10, 2)", "primary key (k)", "1.0", "1.00"),
    ("sqlite", "text collate nocase", "primary key (k)", "'Ada'", "'aDA'"),
    ("sqlite", "blob", "primary key (k)", "1", "1.0"),
]
ROUNDS = 4


async def _done(tables: Tables, run: list[str], saga: str) -> Outcome:
    """Repeat the step, as the engine does, until the row is free."""
    while True:
        outcome = await tables.do(run, saga=saga)
        if outcome.kind == "done":
            return outcome
        assert outcome.failure is not None
        assert outcome.retryable or outcome.failure.type == "RowLocked", outcome
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(("kind", "type", "key", "spelling", "other"), SPELLINGS)
async def test_no_change_is_lost(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, type: str, key: str, spelling: str, other: str
) -> None:
    database = await open_guard_database(kind, database_url(kind, request, tmp_path))
    tables = Tables(database)
    if kind == "postgres":
        await tables.sql("create extension if not exists btree_gist")
    await tables.sql(
        f"create table @t (k {type} not null, v int, {key})", f"insert into @t (k, v) values ({spelling}, 0)"
    )
    first_spelling = await tables.sql("select k from @t")

    async def work(saga: str, written: str) -> int:
        """Steps that add one each, and of which every second is undone; returns how many remain."""
        for number in range(ROUNDS):
            name = f"{saga}{number}"
            replaced = ["delete from @t where k = @@", "insert into @t (k, v) values (@@, -1)"] if number % 2 else []
            run = ["update @t set v = v + 1 where k = @@", *replaced]
            await _done(tables, [text.replace("@@", written) for text in run], name)
            await asyncio.sleep(0.01)  # the other saga may meet the locked row; on SQLite it may wait too long for that
            if number % 2:
                assert (await tables.undo(saga=name)).kind == "done"
            await row_locks.release(database.engine, tables.entry(saga=name).saga_id)
        return ROUNDS - ROUNDS // 2

    change = "update @t set v = v + 1 where k = "
    assert (await tables.do([change + spelling], saga="first")).kind == "done"
    met = await tables.do([change + other], saga="second")
    assert met.failure is not None
    assert met.failure.type == "RowLocked"
    assert (await tables.undo(saga="first")).kind == "done"
    await row_locks.release(database.engine, tables.entry(saga="first").saga_id)

    remaining = await asyncio.gather(work("a", spelling), work("b", other))
    assert [row[0] for row in await tables.sql("select v from @t")] == [sum(remaining)]
    assert await tables.sql("select k from @t") == first_spelling
    await tables.drop()
    await database.connections.close()
