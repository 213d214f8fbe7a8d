"""Tables of MariaDB without transactions: refused before the effect, and never called a failure without one."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
import sqlalchemy as sa

from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.bulk.chunk_performer import ChunkPerformer
from saga_activities.guard.sql_session import SqlSession
from sagas.actions.registry import Actions
from sagas.errors import Rejected
from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation, idempotency_key
from tests.integration.guard.conftest import GuardDatabase, clock, new_address, new_attempt


async def administer(database: GuardDatabase, *statements: str) -> None:
    async with database.engine.connect() as connection:
        for statement in statements:
            await connection.exec_driver_sql(statement)


@pytest_asyncio.fixture
async def mariadb(server_guard_database: GuardDatabase) -> GuardDatabase:
    if server_guard_database.kind != "mariadb":
        pytest.skip("PostgreSQL has only tables with transactions")
    await administer(
        server_guard_database,
        "create or replace table visits (id int primary key, n int) engine = MyISAM",
        "insert into visits values (1, 1)",
        "create or replace table stays (id int primary key, n int) engine = InnoDB",
        "insert into stays values (1, 1)",
    )
    return server_guard_database


async def run(database: GuardDatabase, *statements: Any, rejected: bool = False) -> Outcome:
    async def body(sql: SqlSession, **_: Any) -> None:
        for statement in statements:
            await sql.execute(statement)
        if rejected:
            raise Rejected("no")

    return await database.guard.do(new_address(), "h", body, **clock())


@pytest.mark.parametrize(
    "statement",
    [
        "insert into visits values (2, 2)",
        "insert ignore into guard.visits set id = 2, n = 2",
        "replace visits values (1, 2)",
        "update visits set n = 2 where id = 1",
        "update low_priority `visits` as v set n = 2",
        "update stays s join visits v on v.id = s.id set v.n = 2",
        "update stays, visits set visits.n = 2",
        "update (visits) set n = 2",
        "update (stays s inner join visits on visits.id = s.id) set visits.n = 2",
        "delete visits from (stays join (visits) on visits.id = stays.id)",
        "delete from visits",
        "delete visits from stays join visits on visits.id = stays.id",
        "insert into visits (id, n) select id + 1, n from stays",
        sa.insert(sa.table("visits", sa.column("id"), sa.column("n"))).values(id=2, n=2),
        sa.update(sa.table("visits", sa.column("n"))).values(n=2),
    ],
)
async def test_a_table_without_transactions_is_not_written(mariadb: GuardDatabase, statement: Any) -> None:
    outcome = await run(mariadb, "update stays set n = 9", statement)
    assert outcome.failure is not None
    assert "has no transactions (MyISAM)" in outcome.failure.message
    assert (outcome.kind, outcome.retryable) == ("failed", False)
    assert await mariadb.rows("select id, n from visits union all select id, n from stays") == [(1, 1), (1, 1)]


async def test_no_setting_of_the_server_hides_that_changes_stay(mariadb: GuardDatabase) -> None:
    await administer(mariadb, COUNTED, "set global max_error_count = 0")
    try:
        await mariadb.engine.dispose()
        outcome = await run(mariadb, "update stays set n = 2", rejected=True)
    finally:
        await administer(mariadb, "set global max_error_count = default")
    assert outcome.kind == "unknown"


async def test_it_is_read_and_written_once_it_is_converted(mariadb: GuardDatabase) -> None:
    assert (await run(mariadb, "insert into stays select id + 1, n from visits")).kind == "done"
    assert (await run(mariadb, "update stays set n = (select max(n) from visits)")).kind == "done"
    assert (await run(mariadb, "update visits set n = 2")).kind == "failed"
    await administer(mariadb, "alter table visits engine = InnoDB")
    assert (await run(mariadb, "update visits set n = 2")).kind == "done"


COUNTED = "create or replace trigger count_stays after update on stays for each row insert into visits values (7, 7)"


@pytest.mark.parametrize("rejected", [True, False])
async def test_changes_that_a_rollback_leaves_make_the_outcome_unknown(mariadb: GuardDatabase, rejected: bool) -> None:
    await administer(mariadb, COUNTED)
    fails = () if rejected else ("insert into stays values (1, 1)",)
    outcome = await run(mariadb, "update stays set n = 2", *fails, rejected=rejected)
    assert await mariadb.rows("select n from visits where id = 7") == [(7,)]
    assert (outcome.kind, outcome.retryable) == ("unknown", False)
    assert outcome.park_reason is not None
    assert "kept its changes to a table without transactions (warning 1196)" in outcome.park_reason


async def test_an_entry_of_a_chunk_whose_changes_stay_is_unknown(mariadb: GuardDatabase) -> None:
    await administer(mariadb, "alter table visits drop primary key", COUNTED)
    calls = []
    for run in (
        [{"sql": "insert into stays values (2, 2)"}],
        [{"sql": "update stays set n = 5 where id = 1"}, {"sql": "insert into stays values (1, 1)"}],
    ):
        saga_id = f"saga-{uuid4()}"
        key = idempotency_key(saga_id, "store", 1)
        arguments = {"connection": "shop", "run": run}
        calls.append(
            Invocation("sql", arguments, key, saga_id, "store", "do", 1, timeout=10.0, guard=GuardSpec("shop"))
        )
    done, kept = await ChunkPerformer(mariadb.guard, ActionBodies(Actions([]))).perform(calls, new_attempt())
    assert done is not None
    assert kept is not None
    assert (done.kind, kept.kind, kept.retryable) == ("done", "unknown", False)
    assert kept.park_reason is not None
    assert "kept its changes to a table without transactions" in kept.park_reason
    assert await mariadb.rows("select n from stays order by id") == [(1,), (2,)]
    assert await mariadb.rows("select count(*) from visits where id = 7") == [(1,)]
