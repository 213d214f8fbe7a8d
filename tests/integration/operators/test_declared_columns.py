"""Declarations of `[[reconcile.effects]]` that their database does not know are named: table, setting and SQL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import text

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from saga_spark.reconcile.extracts import ReconciliationScope
from saga_workers.reconcile.declared_columns import HELP, declaration_problems
from saga_workers.reconcile.reconcile_input import _read_connection
from sagas.errors import SagaError
from sagas.settings import Settings, load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database

SCHEMA = 'create table odd (id varchar(20), "Weird Col" varchar(20), gk varchar(20), total numeric, placed timestamp)'
WRONG = {
    "key": ('key = ["id", "Weird Col"]', "`key` has Weird Col"),
    "guard_key": ('guard_key = "guard"', "`guard_key` has guard"),
    "amounts": ('amounts = {totl = "total"}', "`amounts` has totl"),
    "time": ('time = "place"', "`time` has place"),
    "where": ('where = "status <> 1"', "`where` has status <> 1"),
}


def settings_of(folder: Path, url: str, *lines: str, table: str = "odd") -> Settings:
    declared = {"key": 'key = ["id"]', "guard_key": 'guard_key = "gk"'}
    declared |= {line.partition(" ")[0]: line for line in lines}
    effects = ["[[reconcile.effects]]", 'connection = "shop"', f'table = "{table}"', 'step = "write"']
    (folder / "saga.toml").write_text("\n".join([f'[connections.shop]\nurl = "{url}"', *effects, *declared.values()]))
    return load_settings(config=str(folder / "saga.toml"))


@pytest.fixture(params=["postgresql", "sqlite"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    address = f"sqlite:///{tmp_path / 'own.db'}"
    if request.param == "postgresql":
        server: DatabaseServer = request.getfixturevalue("postgres_server")
        address = new_database(server)
    engine = open_engine("shop", address, 1)
    await create_tables(engine)
    async with engine.begin() as connection:
        await connection.execute(text(SCHEMA))
    await engine.dispose()
    return address


@pytest.mark.parametrize("setting", WRONG)
async def test_a_wrong_column_is_named(url: str, tmp_path: Path, setting: str) -> None:
    line, named = WRONG[setting]
    settings = settings_of(tmp_path, url, line)
    problems = await declaration_problems(settings, tables=False)
    assert problems is not None
    (problem,) = problems
    assert problem.startswith(f"[[reconcile.effects]] odd: {named}, which shop cannot read from odd: ")
    with pytest.raises(SagaError, match=re.escape(f"the connection shop could not be read: {problem}")) as refused:
        await read(settings, tmp_path)
    assert refused.value.help == HELP


async def test_right_columns_are_no_problem(url: str, tmp_path: Path) -> None:
    lines = (
        """key = ["id", '"Weird Col"']""",
        'amounts = {total = "total"}',
        'time = "placed"',
        """where = "id <> ':a' and total > 1" """,
    )
    settings = settings_of(tmp_path, url, *lines)
    assert await declaration_problems(settings) == []
    await read(settings, tmp_path)


async def test_a_missing_table_is_named_where_it_has_to_exist(url: str, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, url, table="od")
    problems: Sequence[str] | None = await declaration_problems(settings)
    assert problems is not None
    assert problems[0].startswith("[[reconcile.effects]] od: the table od cannot be read: ")
    assert await declaration_problems(settings, tables=False) == []


async def read(settings: Settings, folder: Path) -> None:
    engine = open_engine("shop", settings.sql_connection("shop").url, 1)
    try:
        effects = settings.reconcile.effects
        await _read_connection("shop", engine, effects, folder / "extract", ReconciliationScope(), effects)
    finally:
        await engine.dispose()
