"""The databases prepare the statements that sagas may still send, for `saga check-deploy`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from saga_activities.connections import open_engine
from saga_workers.deploy.statement_problems import StatementChecks
from sagas.actions.registry import Actions
from sagas.definition.model import Operation
from sagas.machine.remaining_calls import RemainingCall
from sagas.project import Project
from sagas.settings import Settings, SqlConnection
from tests.helpers.new_databases import new_url

STOCK = "create table stock (sku varchar(20) primary key, free int)"
KINDS = ("postgresql", "mariadb", "sqlite")


async def execute(url: str, *statements: str) -> list[Any]:
    """The rows of the last statement."""
    engine = open_engine("test", url, 1)
    async with engine.begin() as connection:
        results = [await connection.exec_driver_sql(statement) for statement in statements]
        rows = [tuple(row) for row in results[-1].all()] if results[-1].returns_rows else []
    await engine.dispose()
    return rows


def project(folder: Path, url: str) -> Project:
    shop = SqlConnection(name="shop", root=folder, url_setting=url)
    return Project(Settings(root=folder, connections={"shop": shop}), Actions([]))


def sql(run: Any, *, recorded: bool = False, connection: str = "shop") -> RemainingCall:
    arguments = {"connection": connection, "run": run}
    return RemainingCall("a", "do", Operation("sql", connection=connection), arguments, recorded)


def restore(run: str) -> RemainingCall:
    restored: Mapping[str, Any] = {"run": [{"sql": run}]}
    return RemainingCall("a", "compensate", Operation("sql.restore", connection="shop"), {}, restored=restored)


async def told(project: Project, *calls: RemainingCall) -> list[tuple[str, bool]]:
    async with AsyncExitStack() as stack:
        checks = StatementChecks(project, stack)
        return [(each.what, each.is_certain) for call in calls for each in await checks.problems(call)]


@pytest.mark.parametrize("kind", KINDS)
async def test_tables_and_columns_that_are_gone(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    url = await new_url(kind, request, tmp_path)
    await execute(url, STOCK, "insert into stock values ('a', 1)")
    shop = project(tmp_path, url)
    take = "update stock set free = free - :n where sku = :sku"
    assert await told(shop, sql(take), restore(take), sql(take, connection="elsewhere")) == []
    problems = await told(
        shop,
        sql([{"sql": take}, {"sql": "update stock set fre = 0 where sku = :sku"}, {"sql": "delete from stok"}]),
        sql(take),
        sql("delete from stock where secret = 'what an operator wrote'", recorded=True),
        restore("insert into stok (sku) values (:sku)"),
    )
    (column, _), (table, _), (given, _), (restored, _) = problems
    assert all(is_certain for _, is_certain in problems)
    assert column.startswith("its statement 2 on shop: ")
    assert "cannot prepare it: " in column
    assert "fre" in column
    assert table.startswith("its statement 3 on shop: ")
    assert "stok" in table
    assert given == "its statement on shop: the database does not prepare it"
    assert restored.startswith("the rows of its statement on shop: `compensate: auto` cannot undo this statement: ")
    assert "there is no table stok" in restored
    assert await execute(url, "select sku, free from stock") == [("a", 1)]


async def test_what_postgresql_cannot_prepare(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = await new_url("postgresql", request, tmp_path)
    await execute(url, STOCK)
    shop = project(tmp_path, url)
    source = {"connection": "shop", "query": "select free from stock where sku = :sku", "params": {"sku": "a"}}
    read = Operation("spark")
    inputs = {"good": source, "bad": {"connection": "shop", "table": "public.stok"}}
    calls = RemainingCall("load", "do", read, {"inputs": inputs, "sql": "select 1"})
    (unchecked, is_certain), (missing, _) = await told(shop, sql("call settle()"), calls)
    assert not is_certain
    assert unchecked == "its statement on shop: not checked because PostgreSQL cannot prepare CALL"
    assert missing.startswith("its query for bad on shop: PostgreSQL cannot prepare it: relation ")


async def test_a_database_that_cannot_be_used(tmp_path: Path) -> None:
    shop = project(tmp_path, f"sqlite:///{tmp_path / 'gone' / 'shop.db'}")
    first, second = await told(shop, sql("select 1"), sql("select 2"))
    assert first == second
    assert first[1]
    assert first[0].startswith("its statement on shop: the database of shop cannot be used: ")
