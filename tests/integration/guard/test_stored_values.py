"""A column may hold another value than it is given, without an error: neither an undo nor its SQL stores one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sagas.sql_text.restoring_script import CHANGED_SINCE
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import database_url, open_guard_database
from tests.integration.guard.test_parked_rows import parked, paste

NO_VALUE = ("timestamp null", "null", "timestamp not null default current_timestamp")
BLANK = ("varchar(4)", "'ab '", "char(4)")
ZEROS = ("varbinary(4)", "'ab'", "binary(4)")
MIGRATIONS = {
    "mariadb": [NO_VALUE, BLANK, ZEROS],
    "postgres": [BLANK],
    "sqlite": [("numeric", "5", "text"), ("numeric", "0.5", "integer")],
}
CASES = [(kind, *case) for kind, cases in MIGRATIONS.items() for case in cases]
CHANGES = ["delete from @t where id = 1", "update @t set v = {}, n = 6 where id = 1"]


def other_value(value: str) -> str:
    return "'2026-01-01'" if value == "null" else "null"


async def opened(kind: str, request: pytest.FixtureRequest, folder: Path, declared: str, value: str) -> Tables:
    tables = Tables(await open_guard_database(kind, database_url(kind, request, folder)))
    await tables.sql(f"create table @t (id int primary key, v {declared}, n int)")
    await tables.sql(f"insert into @t values (1, {value}, 5)")
    return tables


async def migrate(tables: Tables, declared: str) -> None:
    if tables.kind == "sqlite":
        copied = f"new_{tables.id}"
        await tables.sql(f"create table {copied} (id int primary key, v {declared}, n int)")
        await tables.sql(
            f"insert into {copied} select * from @t", "drop table @t", f"alter table {copied} rename to @t"
        )
        return
    await tables.sql(f"alter table @t {'modify v' if tables.kind == 'mariadb' else 'alter v type'} {declared}")


@pytest.mark.sampled("kind", "change")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("kind", "old", "value", "new"), CASES)
async def test_sql_that_was_printed_before_a_migration_stores_no_other_value(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, old: str, value: str, new: str, change: str
) -> None:
    tables = await opened(kind, request, tmp_path, old, value)
    before = await tables.dump()
    assert (await tables.do([change.format(other_value(value))])).kind == "done"
    repeated = f"insert into @t values (1, {other_value(value)}, 8)"
    await tables.sql("update @t set n = 8 where id = 1" if "update" in change else repeated)
    _, details = await parked(tables)
    assert details["sql_refused"] is None
    await migrate(tables, new)
    after = await tables.dump()
    if (kind, old, value) == ("sqlite", "numeric", "0.5"):  # the column holds it as well
        assert await paste(tables, details) == []
        assert await tables.dump() == before
    else:
        assert any(CHANGED_SINCE in shown for shown in await paste(tables, details))
        assert await tables.dump() == after
    await tables.drop()
    await tables.database.connections.close()


@pytest.mark.sampled("kind", "change")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("kind", "old", "value", "new"), [case for case in CASES if case[2] != "0.5"])
async def test_no_sql_is_printed_that_would_store_another_value(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, old: str, value: str, new: str, change: str
) -> None:
    tables = await opened(kind, request, tmp_path, old, value)
    assert (await tables.do([change.format(other_value(value))])).kind == "done"
    await migrate(tables, new)
    after = await tables.dump()
    _, details = await parked(tables)
    assert details["sql"] == []
    assert details["sql_refused"] is not None or details["unread"]
    assert await tables.dump() == after
    await tables.drop()
    await tables.database.connections.close()
