"""Values that a database has in another form than they are given in: times in UTC, doubles, text of numbers."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from sagas.protocol.outcomes import Outcome
from tests.integration.guard.conftest import GuardDatabase
from tests.integration.guard.test_exact_sql_forms import execute

TIMES = "at datetime(6), z timestamp(6) null, d date, t time, x double, note varchar(40)"
IN_UTC = [
    "2026-05-01T10:00:00.5Z",
    "2026-05-01T10:00:00.500+00:00",
    "2026-05-01 10:00:00.5 z",
    "2026-05-01T10:00:00.5+00",
]
ASSIGNING = [
    ("insert into same_forms (at) values ({})", "at"),
    ("insert into same_forms (z) values ({})", "z"),
    ("insert into same_forms (at) select {}", "at"),
    ("insert into same_forms (at) values (coalesce({}, now()))", "at"),
    ("insert into same_forms (at) values (cast({} as datetime(6)))", "at"),
    ("insert into same_forms (at) select s.v from (select {} as v) s", "at"),
    ("insert into same_forms (id, at) values (1, null) on duplicate key update at = {}", "at"),
    ("insert into same_forms (at) values (date_add({}, interval 0 day))", "at"),
]
COMPARING = [
    *(
        "at = {}",
        "{} >= at",
        "z in ({})",
        "at between {} and {}",
        "coalesce(at, now()) = {}",
        "cast({} as datetime(6)) = at",
    ),
    *("timestampdiff(microsecond, at, {}) = 0", "greatest(at, {}) = at", "(1, at) = (1, {})"),
]


@pytest.fixture
async def mariadb(server_guard_database: GuardDatabase) -> GuardDatabase:
    if server_guard_database.kind != "mariadb":
        pytest.skip("PostgreSQL reads these forms itself")
    async with server_guard_database.engine.connect() as connection:
        await connection.exec_driver_sql(
            f"create or replace table same_forms (id int primary key auto_increment, {TIMES})"
        )
    return server_guard_database


def message(outcome: Outcome) -> str:
    assert outcome.failure is not None, outcome
    return outcome.failure.message


@pytest.mark.parametrize(("statement", "column"), ASSIGNING)
async def test_mariadb_stores_times_in_utc(mariadb: GuardDatabase, statement: str, column: str) -> None:
    for text in IN_UTC:
        await mariadb.rows("insert into same_forms (id) values (1)")
        outcome = await execute(mariadb, statement.format(":v"), v=text)
        assert outcome.kind == "done", outcome
        stored = await mariadb.rows(f"select cast({column} as char) from same_forms where {column} is not null")
        assert stored == [("2026-05-01 10:00:00.500000",)], text
        await mariadb.rows("delete from same_forms")


async def test_mariadb_compares_with_times_in_utc(mariadb: GuardDatabase) -> None:
    await mariadb.rows("insert into same_forms (at, z) values (:at, :at)", at="2026-05-01 10:00:00.5")
    for text in IN_UTC:
        for condition in COMPARING:
            where = condition.replace("{}", ":v")
            outcome = await execute(mariadb, f"update same_forms set note = concat(:v) where {where}", v=text)
            assert outcome.kind == "done", (condition, outcome)
            assert await mariadb.rows("select note from same_forms") == [(text,)], condition
            await mariadb.rows("update same_forms set note = null")


async def test_dates_and_times_of_day_in_utc_and_other_offsets(mariadb: GuardDatabase) -> None:
    await execute(
        mariadb, "insert into same_forms (d, t) values (:d, :t)", d="2026-05-01T00:00:00Z", t="10:30:00+00:00"
    )
    assert [tuple(map(str, row)) for row in await mariadb.rows("select d, t from same_forms")] == [
        ("2026-05-01", "10:30:00")
    ]
    for text in ("2026-05-01T12:00:00+02:00", "2026-05-01T10:00:00-01:00"):
        assert (await execute(mariadb, "insert into same_forms (at) values (:v)", v=text)).kind == "failed"
    refused = await execute(mariadb, "insert into same_forms (d) values (:v)", v="2026-05-01T10:00:00Z")
    assert "would drop the time of day" in message(refused)
    assert len(await mariadb.rows("select * from same_forms")) == 1


DOUBLES = ["6.62607015E-34", "1E+80", "5E-324", "1.7976931348623157E+308", "0.1", "-3"]


@pytest.mark.parametrize("value", [*map(Decimal, DOUBLES), 1e80])
async def test_mariadb_stores_every_double(mariadb: GuardDatabase, value: Any) -> None:
    for form in ("values (:v)", "select :v", "values (coalesce(:v, 1))", "select s.v from (select :v as v) s"):
        outcome = await execute(mariadb, f"insert into same_forms (x) {form}", v=value)
        assert outcome.kind == "done", (form, outcome)
    assert {row[0] for row in await mariadb.rows("select x from same_forms")} == {float(value)}
    for condition in ("x = :v", "x in (:v)", "x between :v and :v"):
        outcome = await execute(mariadb, f"update same_forms set note = 'same' where {condition}", v=value)
        assert (outcome.kind, await mariadb.rows("select distinct note from same_forms")) == ("done", [("same",)])
        await mariadb.rows("update same_forms set note = null")


async def test_a_number_that_no_double_is_is_refused(mariadb: GuardDatabase) -> None:
    for value in (Decimal("1E-400"), Decimal("0.12345678901234567890")):
        outcome = await execute(mariadb, "insert into same_forms (x) values (:v)", v=value)
        assert "is a binary float and would round it" in message(outcome)


async def test_sqlite_makes_no_number_of_text(guard_database: GuardDatabase) -> None:
    if guard_database.kind != "sqlite":
        pytest.skip("the other databases have no such types")
    columns = {"s": "string", "u": "uuid", "j": "json"}
    declared = ", ".join(f"{name} {type}" for name, type in columns.items())
    async with guard_database.engine.connect() as connection:
        await connection.exec_driver_sql(f"create table same_forms (id integer primary key, {declared}, n numeric)")
    for column, text in [(column, text) for column in columns for text in ("007", "+7")]:
        outcome = await execute(guard_database, f"insert into same_forms ({column}) values (:v)", v=text)
        assert f"the column {column} of same_forms ({columns[column]}) has numbers for SQLite" in message(outcome)
    for text in ("1e3", "7.0", " 7", "1.10", "12345678901234567890"):
        for form in ("values (:v)", "select :v", "values (coalesce(:v, 'x'))"):
            refused = await execute(guard_database, f"insert into same_forms (s) {form}", v=text)
            assert "has numbers for SQLite" in message(refused)
        refused = await execute(guard_database, "update same_forms set n = 1 where s = :v", v=text)
        assert "declare it as TEXT, or write `cast(:v as numeric)`" in message(refused)
    for text in ("7", "7.5", "x", "0x7"):
        await execute(guard_database, "insert into same_forms (s) values (:v)", v=text)
    assert [str(row[0]) for row in await guard_database.rows("select s from same_forms")] == ["7", "7.5", "x", "0x7"]
    assert (await execute(guard_database, "insert into same_forms (n) values (:v)", v="007")).kind == "done"
