"""Numbers for temporal columns of MariaDB, which reads their digits, and leap seconds, which no database has."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from tests.integration.guard.conftest import GuardDatabase
from tests.integration.guard.test_exact_sql_forms import check_refusal, execute

COLUMNS = "t time, t1 time(1), d date, m datetime, m3 datetime(3), z timestamp(3) null"
REFUSED: list[tuple[str, Any]] = [
    ("t", "10.7"), ("t", "-0.5"), ("t", "100000.7"), ("t1", "10.75"), ("t", Decimal("10.7")), ("t", 10.7),
    ("t1", Decimal("10.75")), ("m", Decimal("20260501120000.7")), ("m3", Decimal("20260501120000.7777")),
    ("z", Decimal("20260501120000.7777")), ("d", 20260502235959), ("d", Decimal("20260501.9")), ("t", 20260501120000),
]  # fmt: skip
HELD: list[tuple[str, Any, str]] = [
    ("t", 103000, "10:30:00"), ("t1", Decimal("10.5"), "00:00:10.5"), ("d", 20260501, "2026-05-01"),
    ("d", 20260501000000, "2026-05-01"), ("m3", Decimal("20260501120000.125"), "2026-05-01 12:00:00.125"),
]  # fmt: skip
OPERANDS = [("d", Decimal("20260501.9"))]
LEAP = [("z", "2026-06-30T23:59:60Z"), ("z0", "2026-06-30 23:59:60+00"), ("t", "23:59:60"), ("m", "20260630T235960")]


async def test_numbers_for_times_of_mariadb_are_stored_whole_or_refused(server_guard_database: GuardDatabase) -> None:
    database = server_guard_database
    if database.kind != "mariadb":
        pytest.skip("PostgreSQL takes no numbers for times")
    async with database.engine.connect() as connection:
        await connection.exec_driver_sql(f"create or replace table times_as_numbers ({COLUMNS})")
    for column, value in REFUSED:
        outcome = await execute(database, f"insert into times_as_numbers ({column}) values (:v)", v=value)
        check_refusal(outcome, column, value)
    assert await database.rows("select * from times_as_numbers") == []
    for column, value, shown in HELD:
        outcome = await execute(database, f"insert into times_as_numbers ({column}) values (:v)", v=value)
        assert outcome.kind == "done", (column, value, outcome)
        assert await database.rows(f"select cast({column} as char) from times_as_numbers") == [(shown,)], (
            column,
            value,
        )
        await execute(database, "delete from times_as_numbers")
    for column, value in OPERANDS:
        outcome = await execute(database, f"update times_as_numbers set t = null where {column} = :v", v=value)
        check_refusal(outcome, column, value)


async def test_a_leap_second_is_refused(server_guard_database: GuardDatabase) -> None:
    database = server_guard_database
    if database.kind != "postgres":
        pytest.skip("MariaDB refuses it itself")
    async with database.engine.connect() as connection:
        await connection.exec_driver_sql("drop table if exists leap_seconds")
        columns = "z timestamptz, z0 timestamptz(0), t time, m timestamp, zs timestamptz[], span interval"
        await connection.exec_driver_sql(f"create table leap_seconds ({columns})")
    for column, value in [*LEAP, ("zs", '{"2026-06-30T23:59:60Z"}'), ("zs", ["2026-06-30T23:59:60Z"])]:
        outcome = await execute(database, f"insert into leap_seconds ({column}) values (:v)", v=value)
        check_refusal(outcome, column, value)
        outcome = await execute(database, f"delete from leap_seconds where {column} = :v", v=value)
        check_refusal(outcome, column, value)
    for column, value in (("span", "00:00:60"), ("t", "23:59:59.999999"), ("m", "2026-06-30T23:59:59")):
        outcome = await execute(database, f"insert into leap_seconds ({column}) values (:v)", v=value)
        assert outcome.kind == "done", (column, value, outcome)
