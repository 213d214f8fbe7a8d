"""Functions of times in the conditions of automatically undone statements: of columns and parameters, not the clock."""

from __future__ import annotations

import pytest

from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import GuardDatabase

TABLES = (
    "create table @visit (id int primary key, at {time}, day {day}, note varchar(20))",
    "insert into @visit values (1, '2026-01-05 10:00:00', '2026-01-05', null)",
)
CONDITIONS = {
    "mariadb": (
        "date(at) = '2026-01-05'",
        "time(at) = '10:00:00'",
        "unix_timestamp(at) > 0",
        "timediff(at, '2026-01-01 00:00:00') > 0",
    ),
    "sqlite": (
        "date(at) = '2026-01-05'",
        "strftime('%Y', at) = '2026'",
        "julianday(day) > 1",
        "datetime(at) < '2026-02-01 00:00:00'",
        "unixepoch(at) > 0",
    ),
}


async def test_a_condition_with_a_function_of_a_column_is_undone(guard_database: GuardDatabase) -> None:
    if guard_database.kind == "postgres":
        pytest.skip("its clock is that of the transaction, so it refuses none")
    time, day = ("datetime", "date") if guard_database.kind == "mariadb" else ("text", "text")
    for condition in CONDITIONS[guard_database.kind]:
        tables = Tables(guard_database)
        await tables.sql(*(statement.format(time=time, day=day) for statement in TABLES))
        before = await tables.dump()
        outcome = await tables.do([f"update @visit set note = 'x' where {condition}"])
        assert outcome.kind == "done", (condition, outcome)
        assert await tables.dump() != before, condition
        assert (await tables.undo()).park_reason is None, condition
        assert await tables.dump() == before, condition
        await tables.drop()


@pytest.mark.parametrize("guard_database", ["sqlite"], indirect=True)
async def test_a_parameter_is_not_the_clock(guard_database: GuardDatabase) -> None:
    tables = Tables(guard_database)
    await tables.sql(*(statement.format(time="text", day="text") for statement in TABLES))
    before = await tables.dump()
    update = "update @visit set note = :note where day < date(:day)"
    for word in ("now", " NOW", "subsec"):
        outcome = await tables.do([{"sql": update, "params": {"day": word, "note": "x"}}], "clock")
        assert outcome.kind == "failed", outcome
        assert any(why in str(outcome.failure) for why in ("its place is a time", "asks for the time")), outcome
        assert await tables.dump() == before
    outcome = await tables.do([{"sql": update, "params": {"day": "2026-02-01", "note": "x"}}], "given")
    assert outcome.kind == "done", outcome
    await tables.drop()
