"""Settings of a role or a database that change what a statement means: the engine's sessions have their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import make_url

from sagas.sql_text.restoring_script import restoring_script
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import open_guard_database


@pytest.fixture
def url(postgres_server: DatabaseServer) -> str:
    return new_database(postgres_server)


@pytest_asyncio.fixture
async def tables(url: str) -> AsyncIterator[Tables]:
    database = await open_guard_database("postgres", url)
    yield Tables(database)
    await database.connections.close()


async def set_for_all(tables: Tables, url: str, name: str, value: str) -> None:
    """Set a value for the database, and close the sessions that have the old one."""
    await tables.sql(f"alter database {make_url(url).database} set {name} = '{value}'")
    await tables.database.engine.dispose()


SETTINGS = {
    "quote_all_identifiers": ("on", "select quote_ident('a')", "a"),
    "transform_null_equals": ("on", "select count(*) from (values (null)) as t (a) where a = null", 0),
    "backslash_quote": ("off", r"select E'it\'s'", "it's"),
    "gin_fuzzy_search_limit": ("1", "select current_setting('gin_fuzzy_search_limit')", "0"),
    "lc_numeric": ("C.UTF-8", "select current_setting('lc_numeric')", "C"),
    "lc_time": ("C.UTF-8", "select current_setting('lc_time')", "C"),
    "timezone_abbreviations": ("India", "select (timestamptz '2026-01-01 12:00 IST')::text", "2026-01-01 10:00:00+00"),
    "xmlbinary": ("hex", "select current_setting('xmlbinary')", "base64"),
}


@pytest.mark.parametrize("name", SETTINGS)
async def test_a_setting_does_not_change_a_statement(tables: Tables, url: str, name: str) -> None:
    value, statement, result = SETTINGS[name]
    await set_for_all(tables, url, name, value)
    with psycopg.connect(url) as connection:
        shown = connection.execute("select current_setting(%s)", [name]).fetchone()
    assert shown == (value,)
    assert await tables.sql(statement) == [(result,)]


PAIR = "create type pair as (a int, b int)"


async def test_quoted_names_are_the_same_types(tables: Tables, url: str) -> None:
    await tables.sql(PAIR, "create table @t (id int primary key, v pair)", "insert into @t values (1, row(1, 2))")
    before = await tables.sql("select v::text from @t")
    assert (await tables.do(["delete from @t"])).kind == "done"
    await set_for_all(tables, url, "quote_all_identifiers", "on")
    assert (await tables.undo()).result == {"restored": 1}
    assert await tables.sql("select v::text from @t") == before


async def test_the_sql_of_a_parked_undo_reads_names_without_quotes(tables: Tables, url: str) -> None:
    await tables.sql(PAIR, "create table @t (id int primary key, v pair)", "insert into @t values (1, row(1, 2))")
    before = await tables.sql("select v::text from @t")
    assert (await tables.do(["delete from @t"])).kind == "done"
    await tables.sql("insert into @t values (1, null)")
    parked = await tables.undo()
    assert parked.failure is not None
    with psycopg.connect(url, options="-c quote_all_identifiers=on", autocommit=True) as connection:
        for statement in restoring_script("postgresql", parked.failure.details["sql"]):
            connection.execute(statement.encode())
    assert await tables.sql("select v::text from @t") == before
