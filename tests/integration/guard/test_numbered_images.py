"""The changes of one row by overlapping transactions of one saga are numbered in the order of their commits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from saga_activities.bodies.sql_action import sql_body
from saga_activities.guard.sql_session import SqlSession
from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import clock, database_url, new_attempt, open_guard_database

ADD = "update @counter set n = n + 1 where id = 1"


async def _do_with_old_snapshot(tables: Tables, step: str, read: asyncio.Event, go_on: asyncio.Event) -> Outcome:
    """Add 1 in a transaction that has read the row and its images, and then waits."""
    arguments = {"connection": "shop", "run": [{"sql": tables.named(ADD)}]}
    entry = tables.entry(step)
    guard = GuardSpec("shop", images=True)
    add = sql_body(
        arguments, Invocation("sql", arguments, str(entry), entry.saga_id, step, "do", 1, guard=guard), new_attempt()
    )

    async def body(sql: SqlSession) -> Any:
        await sql.all(tables.named("select n from @counter"), {})
        await sql.all("select * from saga_image", {})
        read.set()
        await go_on.wait()
        return await add(sql)

    return await tables.database.guard.do(entry, "h", body, **clock())


@pytest.mark.parametrize("undone", [("early", "late"), ("late", "early")])
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
async def test_a_change_after_that_of_a_newer_transaction_has_the_higher_number(
    kind: str, undone: tuple[str, str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = database_url(kind, request, tmp_path)
    database = await open_guard_database(kind, url, isolation="REPEATABLE READ")
    tables = Tables(database)
    await tables.sql("create table @counter (id int primary key, n int)", "insert into @counter values (1, 0)")
    read, go_on = asyncio.Event(), asyncio.Event()
    late = asyncio.create_task(_do_with_old_snapshot(tables, "late", read, go_on))
    await read.wait()
    assert (await tables.do([ADD], "early")).kind == "done"
    go_on.set()
    outcome = await late
    if kind == "postgres":  # refuses the change of a row that is newer than the snapshot, so the attempt is repeated
        assert (outcome.kind, outcome.infrastructure) == ("failed", True)
        outcome = await tables.do([ADD], "late")
    assert outcome.kind == "done", outcome
    saga_id = tables.entry().saga_id
    numbers = await tables.sql(
        f"select step, row_change from saga_image where saga_id = '{saga_id}' and sequence > 0 order by row_change"
    )
    assert [tuple(row) for row in numbers] == [("early", 1), ("late", 2)]
    for step in undone:
        assert (await tables.undo(step)).kind == "done"
    assert await tables.dump() == {"counter": ["(1, 0)"]}
    await tables.drop()
    await database.connections.close()
