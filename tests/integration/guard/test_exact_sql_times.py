"""Text and times for columns that hold less: stored whole, or refused before anything is written."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta, timezone
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from saga_activities.guard.sql_session import SqlSession
from sagas.protocol.outcomes import Outcome
from tests.integration.guard.conftest import GuardDatabase, clock, new_address
from tests.integration.guard.test_exact_sql_numbers import perform

TABLES = {
    "postgres": "id varchar(60) primary key, day date, at0 time(0), at time, moment timestamp(3), micro timestamp,"
    " zoned timestamptz(3), span interval(2), code char(4), name varchar(4), names varchar(4)[],"
    " moments timestamp(0)[]",
    "mariadb": "id varchar(60) primary key, day date, at0 time, at time(6), moment datetime(3), micro datetime(6),"
    " zoned timestamp(3) null, code char(4), name varchar(4), note tinytext",
    "sqlite": "id varchar(60) primary key, day date, at0 time, at time, moment datetime, micro datetime,"
    " zoned datetime, code char(4), name varchar(4), note tinytext",
}
ROUNDED = "digits after the second and would drop the others"


async def insert(database: GuardDatabase, column: str, value: Any) -> tuple[Outcome, list[Any]]:
    async with database.engine.connect() as connection:
        await connection.exec_driver_sql(f"create table if not exists exact_times ({TABLES[database.kind]})")
        await connection.commit()
    id = uuid4().hex
    run = f"insert into exact_times (id, {column}) values (:id, :v)"
    if isinstance(value, str | list):
        outcome = await perform(database, run, id=id, v=value)
    else:  # only Python has such values

        async def body(sql: SqlSession, **_: Any) -> None:
            await sql.execute(run, id=id, v=value)

        outcome = await database.guard.do(new_address(), "h", body, **clock())
    as_text = f"cast({column} as char)" if database.kind == "mariadb" else f"cast({column} as text)"
    return outcome, [row[0] for row in await database.rows(f"select {as_text} from exact_times where id = :id", id=id)]


@pytest.mark.parametrize(
    ("column", "value", "stored"),
    [
        ("day", "2026-01-01", "2026-01-01"),
        ("day", "2026-01-01 00:00:00", "2026-01-01"),
        ("at0", "10:00:00", "10:00:00"),
        ("at0", "10:00:00.000", "10:00:00"),
        ("at", "10:00:00.123456", "10:00:00.123456"),
        ("moment", "2026-01-01 10:00:00.123", "2026-01-01 10:00:00.123"),
        ("moment", "2026-01-01 10:00:00.1230000", "2026-01-01 10:00:00.123"),
        ("micro", "2026-01-01T10:00:00.123456", "2026-01-01 10:00:00.123456"),
        ("micro", datetime(2026, 1, 1, 10, 0, 0, 123456), "2026-01-01 10:00:00.123456"),
        ("code", "abcd", "abcd"),
        ("name", "abc ", "abc "),
    ],
)
async def test_what_a_column_holds_is_stored(
    server_guard_database: GuardDatabase, column: str, value: Any, stored: str
) -> None:
    outcome, rows = await insert(server_guard_database, column, value)
    assert (outcome.kind, rows) == ("done", [stored]), outcome


REFUSED = [
    ("day", "2026-01-01 10:00:00", "holds a date and would drop the time of day"),
    ("day", datetime(2026, 1, 1, 10), "holds a date and would drop the time of day"),
    ("day", "2026-05-01T00:00:00+02:00", "holds no time zone and would drop +02:00"),
    ("at0", "10:00:00.75", f"holds 0 {ROUNDED}"),
    ("at0", "10:00:00.0000001", f"holds 0 {ROUNDED}"),
    ("at0", time(10, 0, 0, 750000), f"holds 0 {ROUNDED}"),
    ("at0", "2026-01-01 10:00:00", "holds a time of day and would drop the date"),
    ("at", "10:00:00.1234567", f"holds 6 {ROUNDED}"),
    ("moment", "2026-01-01 10:00:00.1234567", f"holds 3 {ROUNDED}"),
    ("moment", "20260101T100000.12345", f"holds 3 {ROUNDED}"),
    ("moment", datetime(2026, 1, 1, 10, 0, 0, 123456), f"holds 3 {ROUNDED}"),
    ("micro", "2026-01-01T10:00:00.1234567", f"holds 6 {ROUNDED}"),
    ("zoned", datetime(2026, 1, 1, 10, 0, 0, 123456, tzinfo=UTC), f"holds 3 {ROUNDED}"),
    ("code", "abcd ", "holds 4 and would cut blanks"),
    ("name", "abcd ", "holds 4 and would cut blanks"),
    ("name", "abc  ", "holds 4 and would cut blanks"),
]
OF_POSTGRESQL = [
    ("moment", "2026-01-01T10:00:00+02:00", "holds no time zone and would drop +02:00"),
    ("moment", "2026-01-01 10:00:00 Europe/Berlin", "holds no time zone and would drop Europe/Berlin"),
    ("day", datetime(2026, 5, 1, tzinfo=timezone(timedelta(hours=2))), "would drop the time of day"),
    ("at", "10:00:00-05", "holds no time zone and would drop -05"),
    ("zoned", "2026-01-01T10:00:00.12345+02:00", f"holds 3 {ROUNDED}"),
    ("span", "1.234 seconds", f"holds 2 {ROUNDED}"),
    ("span", timedelta(milliseconds=1234), f"holds 2 {ROUNDED}"),
    ("names", ["abc", "abcd "], "holds 4 and would cut blanks"),
    ("moments", ["2026-01-01 10:00:00", "2026-01-01 10:00:00.5"], f"holds 0 {ROUNDED}"),
]
OF_MARIADB = [("note", "a" * 255 + " ", "holds 255 and would cut blanks")]


def _check_refusal(outcome: Outcome, rows: list[Any], column: str, problem: str) -> None:
    assert outcome.failure is not None, f"{rows} was stored"
    assert problem in outcome.failure.message
    assert f"the column {column} of exact_times" in outcome.failure.message
    assert (outcome.retryable, rows) == (False, [])


@pytest.mark.parametrize(("column", "value", "problem"), REFUSED)
async def test_what_a_column_would_drop_is_refused(
    server_guard_database: GuardDatabase, column: str, value: Any, problem: str
) -> None:
    outcome, rows = await insert(server_guard_database, column, value)
    _check_refusal(outcome, rows, column, problem)


@pytest.mark.parametrize(
    ("kind", "column", "value", "problem"),
    [*(("postgres", *case) for case in OF_POSTGRESQL), *(("mariadb", *case) for case in OF_MARIADB)],
)
async def test_what_only_one_database_would_drop(
    server_guard_database: GuardDatabase, kind: str, column: str, value: Any, problem: str
) -> None:
    if server_guard_database.kind != kind:
        pytest.skip("the other database refuses the value, or has no such type")
    outcome, rows = await insert(server_guard_database, column, value)
    _check_refusal(outcome, rows, column, problem)


async def test_offsets_are_refused_or_converted(server_guard_database: GuardDatabase) -> None:
    """No column has the time of day of another zone afterwards."""
    berlin = datetime(2026, 1, 1, 10, tzinfo=timezone(timedelta(hours=2)))
    for column, value in (("zoned", "2026-01-01T10:00:00+02:00"), ("zoned", berlin), ("moment", berlin)):
        outcome, rows = await insert(server_guard_database, column, value)
        assert (outcome.kind == "failed" and rows == []) or rows[0].startswith("2026-01-01 08:00:00"), (outcome, rows)


async def test_a_statement_built_with_sqlalchemy_is_checked_for_times(server_guard_database: GuardDatabase) -> None:
    database = server_guard_database
    await insert(database, "name", "warm")
    table = sa.table("exact_times", sa.column("id"), sa.column("moment", sa.DateTime))

    async def body(sql: SqlSession, **_: Any) -> None:
        await sql.execute(sa.insert(table).values(id="built", moment=datetime(2026, 1, 1, 10, 0, 0, 123456)))

    outcome = await database.guard.do(new_address(), "h", body, **clock())
    assert outcome.failure is not None
    assert f"holds 3 {ROUNDED}" in outcome.failure.message


async def test_the_author_rounds(server_guard_database: GuardDatabase) -> None:
    await insert(server_guard_database, "name", "warm")
    for target, run in (
        ("day", "insert into exact_times (id, day) values (:id, cast(:v as date))"),
        ("name", "insert into exact_times (id, name) values (:id, left(:v, 4))"),
    ):
        value = {"day": "2026-01-01 10:00:00", "name": "abcd "}[target]
        outcome = await perform(server_guard_database, run, id=uuid4().hex, v=value)
        assert outcome.kind == "done", outcome


async def test_a_cast_to_a_time_in_utc_computes_nothing(guard_database: GuardDatabase) -> None:
    if guard_database.kind != "postgres":
        pytest.skip("the others have no such cast")
    await insert(guard_database, "name", "warm")
    for column, value, expected in (
        ("zoned", "2026-01-01T10:00:00.1234+02:00", f"holds 3 {ROUNDED}"),
        ("moment", "2026-01-01T10:00:00.1234+02:00", f"holds 3 {ROUNDED}"),
        ("day", "2026-01-01T00:00:00+02:00", "would drop the time of day"),
        ("moment", "2026-01-01T10:00:00+02:00", "2026-01-01 08:00:00"),
        ("day", "2026-01-01T02:00:00+02:00", "2026-01-01"),
    ):
        id = uuid4().hex
        run = f"insert into exact_times (id, {column}) values (:id, :v::timestamptz)"
        outcome = await perform(guard_database, run, id=id, v=value)
        rows = await guard_database.rows(f"select cast({column} as text) from exact_times where id = :id", id=id)
        if outcome.failure is None:
            assert [tuple(row) for row in rows] == [(expected,)]
        else:
            assert (expected in outcome.failure.message, rows) == (True, []), (column, outcome)


async def test_sqlite_stores_every_text_as_it_is(guard_database: GuardDatabase) -> None:
    if guard_database.kind != "sqlite":
        pytest.skip("the other databases have types")
    basic = "20260101T100000.12345"  # not read by SQLite's functions
    for column, value, _ in [case for case in REFUSED if isinstance(case[1], str) and case[1] != basic]:
        outcome, rows = await insert(guard_database, column, value)
        assert (outcome.kind, rows) == ("done", [value])
