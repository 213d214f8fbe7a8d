"""Dates and times as text in another form than that of ISO 8601, wherever a statement wants one."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from saga_activities.guard.sql_session import SqlSession
from saga_activities.parameters.iso_times import iso_problem, may_be_time
from tests.helpers.quiet_cpu import is_short
from tests.integration.guard.conftest import GuardDatabase, clock, new_address
from tests.integration.guard.test_exact_sql_numbers import perform

COLUMNS = {
    "postgres": "day date, at time, moment timestamp, zoned timestamptz, days date[], stay daterange, label text",
    "mariadb": "day date, at time, moment datetime, zoned timestamp null, label varchar(40)",
    "sqlite": "day date, at time, moment datetime, zoned timestamp, label text",
}
DAYS = ["1.5.2026", "01/05/26", "05-01-2026", "5 May 2026", "May 5, 2026", "2026-5-1", "260501", "today", "2026/05/01"]
PLACES = {
    "postgres": [
        *("day = :v", "day between :v and current_date", "day in (:v)", "moment > :v", "zoned <= coalesce(:v, now())"),
        *(":v::date = day", "cast(:v as timestamptz) > now()", "age(:v::timestamp) is null", "date :v = day"),
        *("make_interval(days => day - :v) is null", "date_trunc('day', :v::timestamptz) = day", "day = any(:l)"),
    ],
    "mariadb": [
        *("day = :v", "day between :v and current_date", "day in (:v)", "moment > :v", "zoned <= coalesce(:v, now())"),
        *("cast(:v as date) = day", "date(:v) = day", "datediff(:v, day) > 1", "year(:v) = 2026", "date(moment) = :v"),
        *("day + interval 1 day = :v", "date_add(:v, interval 1 day) = day", "timestampdiff(day, :v, day) > 1"),
        *("unix_timestamp(:v) > 1", "extract(year from :v) = 2026", "last_day(:v) = day"),
    ],
    "sqlite": [
        *("day = :v", "day between :v and current_date", "day in (:v)", "moment > :v", "zoned <= coalesce(:v, '')"),
        *("date(:v) = day", "datetime(:v) = day", "julianday(:v) > 1", "strftime('%Y', :v) = '2026'", "date(day) = :v"),
    ],
}


@pytest.fixture
async def database(guard_database: GuardDatabase) -> GuardDatabase:
    async with guard_database.engine.connect() as connection:
        columns = COLUMNS[guard_database.kind]
        await connection.exec_driver_sql(f"create table if not exists iso_times (id varchar(60), {columns})")
        await connection.commit()
    return guard_database


async def stored(database: GuardDatabase, column: str, value: Any) -> tuple[str, list[Any]]:
    id = uuid4().hex
    outcome = await perform(database, f"insert into iso_times (id, {column}) values (:id, :v)", id=id, v=value)
    text = "char" if database.kind == "mariadb" else "text"
    rows = await database.rows(f"select cast({column} as {text}) from iso_times where id = :id", id=id)
    return outcome.kind if outcome.failure is None else outcome.failure.message, [row[0] for row in rows]


async def test_a_column_takes_only_iso_8601(database: GuardDatabase) -> None:
    cases = [("day", value, "2026-05-01 or") for value in DAYS]
    cases += [("moment", value, "2026-05-01 or") for value in ("1.5.2026 10:00:00", "20260501100000", "tomorrow")]
    cases += [("zoned", "May 1 2026 10:00", "2026-05-01 or"), ("zoned", "1.5.2026 10:00 UTC", "2026-05-01 or")]
    cases += [("at", value, "10:00:00") for value in ("10:00 AM", "1030", "100000", "10.30", "20260501")]
    if database.kind == "postgres":
        cases += [("days", ["2026-05-01", "1.5.2026"], "2026-05-01 or"), ("days", "{1.5.2026}", "2026-05-01 or")]
        cases += [("stay", "[1.5.2026,)", "2026-05-01 or"), ("zoned", "2026-05-01 10:00 CEST", "2026-05-01 or")]
    if database.kind == "sqlite":
        cases += [("day", value, "2026-05-01 or") for value in ("2026-02-30", "2026-13-01 10:00", "20260501")]
    for column, value, example in cases:
        message, rows = await stored(database, column, value)
        assert "in ISO 8601 form there: give it such as " + example in message, (column, value, message, rows)
        assert "the parameter v is " in message
        assert rows == [], (column, value)


async def test_iso_8601_is_stored(database: GuardDatabase) -> None:
    cases = [
        ("day", "2026-05-01", "2026-05-01"),
        ("moment", "2026-05-01T10:00:00", "2026-05-01 10:00:00"),
        ("moment", "2026-05-01", "2026-05-01 00:00:00"),
        ("at", "10:00", "10:00:00"),
        ("label", "1.5.2026", "1.5.2026"),
        ("label", "today", "today"),
    ]
    if database.kind == "postgres":
        cases += [("days", "[0:1]={2026-05-01,2026-05-02}", "[0:1]={2026-05-01,2026-05-02}")]
        cases += [("stay", "[2026-05-01,2026-06-01)", "[2026-05-01,2026-06-01)"), ("at", "T10:00:00", "10:00:00")]
    if database.kind != "sqlite":
        cases += [("day", "20260501", "2026-05-01")]
    for column, value, expected in cases:
        message, rows = await stored(database, column, value)
        assert message == "done", (column, value, message)
        written = value if database.kind == "sqlite" else expected
        assert rows == [written], (column, value, message)


async def test_every_place_of_a_time_takes_only_iso_8601(database: GuardDatabase) -> None:
    for condition in PLACES[database.kind]:
        given: dict[str, Any] = {"l": ["1.5.2026"]} if ":l" in condition else {"v": "1.5.2026"}
        outcome = await perform(database, f"delete from iso_times where {condition}", **given)
        message = "" if outcome.failure is None else outcome.failure.message
        assert "is text in ISO 8601 form there" in message or "write `:v::date`" in message, (condition, outcome)
        given = {name: ["2026-05-01"] if name == "l" else "2026-05-01" for name in given}
        outcome = await perform(database, f"delete from iso_times where {condition} and 1 = 0", **given)
        assert outcome.kind == "done" or "date :v" in condition or "make_interval" in condition, (condition, outcome)


async def test_the_type_of_the_column_may_be_a_domain(database: GuardDatabase) -> None:
    if database.kind != "postgres":
        pytest.skip("the others have no domains")
    async with database.engine.connect() as connection:
        for statement in (
            "create domain own_day as date",
            "create domain own_birthday as own_day",
            "create table if not exists own_days (day own_day, birthday own_birthday)",
        ):
            await connection.exec_driver_sql(statement)
        await connection.commit()
    for run in (
        "insert into own_days (day) values (:v)",
        "insert into own_days (birthday) values (:v)",
        "delete from own_days where birthday = :v",
        "select :v::own_birthday as day",
    ):
        outcome = await perform(database, run, v="1.5.2026")
        assert outcome.failure is not None, run
        assert "in ISO 8601 form" in outcome.failure.message, (run, outcome.failure.message)
        assert (await perform(database, run, v="2026-05-01")).kind == "done", run


async def test_a_statement_built_with_sqlalchemy_is_checked(database: GuardDatabase) -> None:
    table = sa.table("iso_times", sa.column("id"), sa.column("day", sa.Date))

    async def body(sql: SqlSession) -> None:
        await sql.execute(sa.insert(table).values(id="built", day="1.5.2026"))

    outcome = await database.guard.do(new_address(), "h", body, **clock())
    assert outcome.failure is not None
    assert "in ISO 8601 form" in outcome.failure.message


async def test_the_statement_may_read_another_form(database: GuardDatabase) -> None:
    read = {"postgres": "to_date(:v, 'DD.MM.YYYY')", "mariadb": "str_to_date(:v, '%d.%m.%Y')"}.get(database.kind)
    if read is None:
        pytest.skip("SQLite has no such function")
    id = uuid4().hex
    outcome = await perform(database, f"insert into iso_times (id, day) values (:id, {read})", id=id, v="1.5.2026")
    assert outcome.kind == "done", outcome
    rows = await database.rows("select cast(day as char(10)) from iso_times where id = :id", id=id)
    assert [row[0] for row in rows] == ["2026-05-01"]


def test_no_text_takes_long() -> None:
    def read() -> None:
        for text in (
            "1" * 63 + "x",
            "may1" * 15 + "x",
            "1 " * 31 + "x",
            "jan" * 21,
            "2026-05-01 10:00" + " " * 100_000 + "x",
        ):
            may_be_time(text)
            iso_problem(text, date=True, is_stored=False)

    assert is_short(read, 1)
