"""Errors of databases about a value: each message names the parameter, and the column that the value is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from saga_activities.bodies.sql_action import sql_body
from saga_activities.guard.sql_session import SqlSession
from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from tests.integration.guard.conftest import GuardDatabase, clock, new_address, new_attempt

TABLE = {
    "postgres": "(id varchar(9) primary key, n int, day date, name varchar(3), doc jsonb, bits bit(4), ns int[])",
    "mariadb": "(id varchar(9) primary key, n int, day date, name varchar(3), doc json, kind enum('a', 'b'))",
    "sqlite": "(id text primary key, n int, day text, name text) strict",
}
INSERT = "insert into refused_values (id, {}) values (:id, :v)"
Case = tuple[str, Any, str]
EVERYWHERE: list[Case] = [
    (INSERT.format("n"), "abc", "the value of :v for the column n of refused_values"),
    ("update refused_values set n = :v where id = :id", "abc", "the value of :v for the column n of refused_values"),
    ("update refused_values set name = 'x', n = coalesce(:v, 1) where id = :id", "abc", "the value of :v"),
]
CASES: dict[str, Sequence[Case]] = {
    "postgres": [
        *EVERYWHERE,
        (INSERT.format("day"), "2026-02-30", '"2026-02-30", the value of :v for the column day of refused_values'),
        (INSERT.format("day"), "2026-13-01", "the value of :v for the column day of refused_values; write the date"),
        (INSERT.format("name"), "abcd", "the value of :v for the column name of refused_values"),
        (INSERT.format("doc"), "{", "the value of :v for the column doc of refused_values (22P02)"),
        (INSERT.format("bits"), "11111", "the value of :v for the column bits of refused_values"),
        (INSERT.format("ns"), "{1,a}", "the value of :v for the column ns of refused_values"),
        (
            "select 1 from refused_values where day = :v and id = :id",
            "soon",
            "the value of :v, compared with the column day of refused_values (",
        ),
        ("select 1 from refused_values where :id <> '' and age(day) < :v", "soon", "the value of :v (22007)"),
        ("insert into refused_values (id, name) values (:id, 'x' || :v)", "abc", "character varying(3) (22001)"),
        ("select :id, (:v::text)::date", "soon", "the value of :v (22007)"),
    ],
    "mariadb": [
        *EVERYWHERE,
        (INSERT.format("day"), "2026-02-30", "`day` at row 1, the value of :v (1292)"),
        (INSERT.format("name"), "abcd", "'name' at row 1, the value of :v (1406)"),
        (INSERT.format("kind"), "c", "'kind' at row 1, the value of :v (1265)"),
        (INSERT.format("doc"), "{", "the value of :v (4025)"),
        ("insert into refused_values values (:id, null, :v, null, null, null)", "soon", "the value of :v (1292)"),
        ("select 1 from refused_values where id <> :id and n = :v", "5 or so", "the value of :v, compared with the"),
        ("insert into refused_values (id, name) values (:id, concat('x', :v))", "abc", "'name' at row 1 (1406)"),
    ],
    "sqlite": EVERYWHERE,
}


async def perform(database: GuardDatabase, run: str, images: bool, **params: Any) -> Outcome:
    address = database.current = new_address()
    guard = GuardSpec("shop", images=images)
    invocation = Invocation("sql", {}, str(address), address.saga_id, address.entry, "do", 1, guard=guard)
    body = sql_body({"run": run, "params": params}, invocation, new_attempt())
    return await database.guard.do(address, "h", body, **clock())


@pytest.mark.sampled
@pytest.mark.parametrize("images", [False, True])
async def test_a_message_names_the_parameter_and_the_column(guard_database: GuardDatabase, images: bool) -> None:
    async with guard_database.engine.connect() as connection:
        await connection.exec_driver_sql("drop table if exists refused_values")
        await connection.exec_driver_sql(f"create table refused_values {TABLE[guard_database.kind]}")
        await connection.exec_driver_sql("insert into refused_values (id, n) values ('x', 5)")
        await connection.commit()
    for statement, value, expected in CASES[guard_database.kind]:
        if images and statement.startswith("select"):
            continue
        id = "x" if statement.startswith("update") else "id"
        outcome = await perform(guard_database, statement, images, id=id, v=value)
        assert outcome.failure is not None, statement
        # MariaDB and SQLite name the column themselves, and not the parameter.
        names = expected.partition(" for the column")[0] if guard_database.kind != "postgres" else expected
        assert names in outcome.failure.message, outcome.failure.message
        assert ("the value of" in outcome.failure.message) == ("the value of" in expected), outcome.failure.message


async def test_the_parameter_of_several_rows_is_named(server_guard_database: GuardDatabase) -> None:
    database = server_guard_database
    async with database.engine.connect() as connection:
        await connection.exec_driver_sql("drop table if exists refused_values")
        await connection.exec_driver_sql(f"create table refused_values {TABLE[database.kind]}")
        await connection.commit()

    async def body(sql: SqlSession) -> None:
        rows = [{"id": "1", "day": "2026-05-01"}, {"id": "2", "day": "2026-02-30"}]
        await sql.execute("insert into refused_values (id, day) values (:id, :day)", rows)

    outcome = await database.guard.do(new_address(), "h", body, **clock())
    assert outcome.failure is not None
    assert "the value of :day" in outcome.failure.message
