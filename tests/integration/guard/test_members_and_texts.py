"""Numbers and booleans for columns of MariaDB that would take them for another value, and booleans in JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from saga_activities.guard.sql_session import SqlSession
from sagas.protocol.outcomes import Outcome
from tests.helpers.database_servers import DatabaseServer
from tests.integration.guard.conftest import GuardDatabase, clock, new_address, open_guard_database

TABLE = """
create table members (
    id int primary key, stars enum('0', '1', '2', '3'), sizes set('1', '2', '4'), code varchar(10), doc json
)
"""
STARS = "insert into members (id, stars) values (:id, :v)"
ASSIGNING = [
    STARS,
    "insert into members (id, sizes) values (:id, :v)",
    "insert into members (id, stars) select :id, :v",
    "insert into members set id = :id, stars = :v",
    "replace into members (id, stars) values (:id, :v)",
    "insert into members (id, stars) values (100, '1') on duplicate key update id = :id, stars = :v",
    "insert into members (id, stars) values (:id, coalesce(null, :v))",
    "insert into members (id, stars) values (:id, elt(1, :v))",
    "insert into members (id, stars) select :id, s.v from (select :v as v) s",
    "update members set id = :id, stars = :v where id = 100",
]
COMPARING = [
    "update members set id = :id where stars = :v",
    "update members set id = :id where stars in (:v, 'x')",
    "update members set id = :id where sizes = :v",
    "update members set id = :id where code = :v",
    "update members set id = :id where code between :v and :v",
    "update members set id = :id where code = (select :v)",
    "update members set id = :id where (1, code) = (1, :v)",
    "update members set id = :id where case code when :v then 1 end = 1",
    "update members set id = :id where nullif(code, :v) is null",
    "delete from members where id <> :id and code = :v",
]


@pytest_asyncio.fixture(params=["mariadb", "mysql"])
async def database(request: pytest.FixtureRequest, mariadb_server: DatabaseServer) -> AsyncIterator[GuardDatabase]:
    """MariaDB, with both schemes that its URL may have."""
    url = mariadb_server.url("guard").replace("mariadb://", f"{request.param}://")
    opened = await open_guard_database("mariadb", url)
    await create(opened, TABLE)
    yield opened
    await opened.connections.close()


async def create(database: GuardDatabase, table: str) -> None:
    async with database.engine.connect() as connection:
        for statement in ("drop table if exists members", table):
            await connection.exec_driver_sql(statement)


async def run(database: GuardDatabase, statement: str, *values: Any) -> Outcome:
    async def body(sql: SqlSession) -> None:
        await sql.execute(statement, values)

    return await database.guard.do(new_address(), "h", body, **clock())


def message(outcome: Outcome) -> str:
    assert outcome.failure is not None, outcome
    return outcome.failure.message


async def rows(database: GuardDatabase) -> list[Any]:
    return [tuple(row) for row in await database.rows("select id, stars, sizes, code from members order by id")]


@pytest.mark.sampled
@pytest.mark.parametrize("statement", ASSIGNING)
async def test_no_position_is_stored_for_a_member(database: GuardDatabase, statement: str) -> None:
    await database.rows("insert into members (id, stars, code) values (100, '0', '7')")
    for value in (3, True, "7", " 3", "+1"):
        outcome = await run(database, statement, {"id": 1, "v": value})
        assert "would store the member at this position: give the member as text" in message(outcome)
    assert await rows(database) == [(100, "0", None, "7")]


async def test_a_member_given_as_text_is_stored(database: GuardDatabase) -> None:
    for id, value in enumerate(["3", "0", None, "2"]):
        assert (await run(database, STARS, {"id": id, "v": value})).kind == "done"
    cast = "insert into members (id, stars) values (:id, cast(:v as char))"
    assert (await run(database, cast, {"id": 7, "v": 3})).kind == "done"
    assert (await run(database, "insert into members (id, sizes) values (8, :v)", {"v": "1,4"})).kind == "done"
    assert [row[1] or row[2] for row in await rows(database)] == ["3", "0", None, "2", "3", "1,4"]


async def test_each_of_several_rows_is_compared_with_the_members(database: GuardDatabase) -> None:
    outcome = await run(database, STARS, {"id": 1, "v": "3"}, {"id": 2, "v": 2})
    assert "the parameter v is 2, and the column stars of members (enum('0','1','2','3'))" in message(outcome)
    assert await rows(database) == []


@pytest.mark.sampled
@pytest.mark.parametrize("statement", COMPARING)
async def test_no_number_is_compared_with_the_beginning_of_texts(database: GuardDatabase, statement: str) -> None:
    await database.rows("insert into members values (1, '1', '1', '7', null), (2, '2', '2', '007', null)")
    before = await rows(database)
    for value in (7, True, 7.5):
        outcome = await run(database, statement, {"id": 9, "v": value})
        assert "give text, or write `cast(:v as char)`" in message(outcome)
    assert await rows(database) == before


async def test_a_number_is_compared_as_text_after_a_cast(database: GuardDatabase) -> None:
    await database.rows("insert into members values (1, '1', '1', '7', null), (2, '2', '2', '007', null)")
    for statement in ("code = cast(:v as char)", "code like :v", "stars = cast(:v as char) or code = cast(:v as char)"):
        await run(database, f"update members set id = id + 10 where {statement}", {"v": 7})
    assert [row[0] for row in await rows(database)] == [2, 31]


BOOLEANS = [
    "insert into members (id, doc) values (:id, :v)",
    "insert into members (id, doc) select :id, :v",
    "insert into members (id, doc) values (:id, coalesce(:v, null))",
]


@pytest.mark.parametrize("value", [True, False])
async def test_a_boolean_is_one_in_json(database: GuardDatabase, value: bool) -> None:
    inside = ["json_object('a', :v)", "json_array(:v)", "json_set('{}', '$.a', :v)"]
    for form in [*BOOLEANS, *(f"insert into members (id, doc) values (:id, {call})" for call in inside)]:
        await database.rows("delete from members")
        assert (await run(database, form, {"id": 1, "v": value})).kind == "done"
        ((stored,),) = await database.rows("select doc from members")
        assert stored.strip('[]{}a:" ') == ("true" if value else "false"), form


@pytest.mark.parametrize(
    "call", ["json_object('a', :v)", "json_array(:v)", "json_set('{}', '$.a', :v)", "json_quote(:v)"]
)
async def test_sqlite_writes_no_boolean_as_a_number_into_json(tmp_path: Path, call: str) -> None:
    database = await open_guard_database("sqlite", f"sqlite:///{tmp_path / 'members.db'}")
    await create(database, "create table members (id integer primary key, doc json)")
    refused = await run(database, f"insert into members (id, doc) values (1, {call})", {"v": True})
    assert "write `json(iif(:v, 'true', 'false'))`" in message(refused)
    advised = call.replace(":v", "json(iif(:v, 'true', 'false'))")
    for id, value in enumerate([True, False]):
        await run(database, f"insert into members (id, doc) values ({id}, {advised})", {"v": value})
    stored = await database.rows("select doc from members order by id")
    assert [("true" in doc, "false" in doc) for (doc,) in stored] == [(True, False), (False, True)]
    for id, value in enumerate([True, False], 10):
        await run(database, BOOLEANS[0], {"id": id, "v": value})
    assert await database.rows("select doc from members where id >= 10 order by id") == [("true",), ("false",)]
    await database.connections.close()
