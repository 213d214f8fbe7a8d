"""The number of rows of a statement on MariaDB, which counts an updated row of an INSERT twice."""

from __future__ import annotations

import pytest
import pytest_asyncio

from saga_activities.guard.sql_session import SqlSession
from tests.integration.guard.conftest import GuardDatabase, clock, new_address

SET_UP = (
    "create or replace table counted (id int primary key, code int unique, n int)",
    "insert into counted values (1, 1, 1), (2, 2, 2)",
    "create or replace table staged (id int primary key)",
    "insert into staged values (1), (2), (7)",
)
COUNTS = {
    "insert into counted values (1, 1, 5) on duplicate key update n = 5": 1,
    "/* upsert */ insert into counted values (1, 1, 5) on duplicate key update n = 5": 1,
    "insert into counted values (8, 8, 5) on duplicate key update n = 5": 1,
    "insert into counted values (1, 1, 1) on duplicate key update n = 1": 1,
    "insert into counted values (1, 1, 5), (8, 8, 5) on duplicate key update n = 5": 2,
    "insert into counted select id, id, 5 from staged on duplicate key update n = 5": 3,
    "insert into counted select id, id, 5 from staged where id = 1 on duplicate key update n = 5": 1,
    "replace into counted values (1, 1, 5)": 1,
    "replace into counted values (1, 2, 5)": 1,
    "replace into counted select id, id, 5 from staged": 3,
    "insert ignore into counted values (1, 1, 5), (8, 8, 5)": 1,
    "insert into counted values (8, 8, 5) returning id": 1,
    "insert into counted values (8, 8, 5), (9, 9, 5) returning id": 2,
    "update counted set n = n": 2,
    "update counted set n = 7 where id = 1": 1,
    "delete from counted": 2,
}


@pytest_asyncio.fixture
async def mariadb(server_guard_database: GuardDatabase) -> GuardDatabase:
    if server_guard_database.kind != "mariadb":
        pytest.skip("the other databases count rows")
    async with server_guard_database.engine.connect() as connection:
        for statement in SET_UP:
            await connection.exec_driver_sql(statement)
    return server_guard_database


@pytest.mark.parametrize("statement", COUNTS)
async def test_a_row_counts_once(mariadb: GuardDatabase, statement: str) -> None:
    async def body(sql: SqlSession) -> int:
        return await sql.execute(statement)

    assert (await mariadb.guard.do(new_address(), "h", body, **clock())).result == COUNTS[statement]
