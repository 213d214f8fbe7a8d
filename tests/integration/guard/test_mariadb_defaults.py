"""Defaults of a MariaDB server for its sessions: an automatic compensation finds and restores all rows all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.helpers.database_servers import DatabaseServer
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import open_guard_database

DEFAULTS = {
    "sql_select_limit": 1,
    "max_join_size": 1,
    "sql_safe_updates": 1,
    "sql_auto_is_null": 1,
    "completion_type": 1,
    "foreign_key_checks": 0,
    "unique_checks": 0,
    "check_constraint_checks": 0,
    "div_precision_increment": 0,
    "group_concat_max_len": 4,
    "max_sort_length": 64,
    "max_recursive_iterations": 3,
    "lc_time_names": "de_DE",
    "default_week_format": 1,
    "old_mode": "ZERO_DATE_TIME_CAST,UTF8_IS_UTF8MB3",
    "sql_notes": 0,
}


@pytest_asyncio.fixture
async def tables(mariadb_server: DatabaseServer) -> AsyncIterator[Tables]:
    """Tables in sessions that were opened while the server had these defaults."""
    administrator = await open_guard_database("mariadb", mariadb_server.url("guard"))
    before = {name: (await administrator.rows(f"select @@global.{name}"))[0][0] for name in DEFAULTS}
    try:
        await administrator.rows(f"set {', '.join(f'global {name} = {value!r}' for name, value in DEFAULTS.items())}")
        assert (await administrator.rows("select @@global.sql_select_limit"))[0][0] == 1
        database = await open_guard_database("mariadb", mariadb_server.url("guard"))
        tables = Tables(database)
        yield tables
        await tables.drop()
        await database.connections.close()
    finally:
        values = ", ".join(f"global {name} = {value!r}" for name, value in before.items())
        await administrator.rows(f"set {values}")
        await administrator.connections.close()


async def test_all_rows_of_a_step_are_restored_whatever_the_defaults_of_the_server(tables: Tables) -> None:
    await tables.sql(
        "create table @shelf (id int primary key)",
        "create table @item (id int primary key, shelf int references @shelf (id), n int check (n < 100))",
        "insert into @shelf values (1), (2)",
        "insert into @item values (1, 1, 10), (2, 1, 20), (3, 2, 30)",
    )
    before = await tables.dump()
    done = await tables.do(
        ["update @item set n = n + 1", "delete from @item where n > 15", "delete from @shelf where id = 2"]
    )
    assert done.kind == "done", done
    assert (await tables.dump())["item"] == ["(1, 1, 11)"]
    undone = await tables.undo()
    assert (undone.kind, await tables.dump()) == ("done", before), undone


async def test_constraints_hold_whatever_the_defaults_of_the_server(tables: Tables) -> None:
    await tables.sql(
        "create table @shelf (id int primary key)",
        "create table @item (id int primary key, shelf int references @shelf (id), n int check (n < 100))",
    )
    for step, row in (("a", "1, 7, 10"), ("b", "1, null, 100")):
        assert (await tables.do([f"insert into @item values ({row})"], step)).kind == "failed"
    assert (await tables.dump())["item"] == []


RESULTS = """
select cast(1 / 3 as char) as quotient, group_concat(n order by n) as numbers, monthname('2026-03-01') as month,
  week('2026-01-04') as week, cast(cast(cast('10:00' as time) as datetime) as char) > '2026' as today,
  (select group_concat(variable_value order by variable_name separator '/') from information_schema.session_variables
   where variable_name in ('max_sort_length', 'old_mode', 'sql_notes')) as settings
from (with recursive t as (select 1 as n union all select n + 1 from t where n < 5000) select n from t) numbers
where n in (1, 2, 5000)
"""


async def test_results_are_the_same_whatever_the_defaults_of_the_server(tables: Tables) -> None:
    for step in ("first", "cleaned"):
        done = await tables.do([RESULTS], step, images=False)
        assert done.kind == "done", done
        [row] = done.result
        assert row == {
            "quotient": "0.3333",
            "numbers": "1,2,5000",
            "month": "March",
            "week": 1,
            "today": 1,
            "settings": "1024/UTF8_IS_UTF8MB3/ON",
        }
