"""Literals in the SQL that `saga reconcile` prints: an operator pastes them into a session of the database."""

from __future__ import annotations

import inspect
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from saga_spark.reconcile.findings import Finding, repair_command, sql_literal
from sagas.text.printable import printable_line
from tests.integration.guard.conftest import GuardDatabase

VALUES = (
    "plain",
    "it's",
    "a\\",
    "\\'; drop table x; -- ",
    "\\\\'; drop table x; -- ",
    "' or 1=1 -- ",
    "line\nbreak\ttab",
    "\x1b[2Jesc",
    "soft\xadhyphen",
    "right\u202eleft",
    "tag\U000e0041",
    "emoji 😀 %s %% :name",
)
MODES = {"mariadb": ("", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES"), "postgres": ("on", "off"), "sqlite": ("",)}
SET_MODE = {"mariadb": "set session sql_mode = '{}'", "postgres": "set standard_conforming_strings = {}"}


async def run(connection: AsyncConnection, statement: str) -> Any:
    """The first row of a statement that is sent as it is: SQLAlchemy and drivers would interpret `%` and `:name`."""
    raw: Any = (await connection.get_raw_connection()).driver_connection
    cursor = raw.cursor()
    if inspect.isawaitable(cursor):
        cursor = await cursor
    await cursor.execute(statement)
    row = await cursor.fetchone() if cursor.description else None
    await cursor.close()
    return row


async def test_a_literal_is_one_value_in_every_mode_of_the_server(guard_database: GuardDatabase) -> None:
    dialect = guard_database.engine.dialect.name
    async with guard_database.engine.connect() as connection:
        for mode in MODES[guard_database.kind]:
            if guard_database.kind in SET_MODE:
                await run(connection, SET_MODE[guard_database.kind].format(mode))
            for value in VALUES:
                literal = sql_literal(value, dialect)
                assert printable_line(literal) == literal, "what the terminal shows is what is pasted"
                assert tuple(await run(connection, f"select {literal}, 'after'")) == (value, "after"), literal
        await connection.invalidate()  # its mode


async def test_a_repair_finds_its_row_and_no_other(guard_database: GuardDatabase) -> None:
    dialect = guard_database.engine.dialect.name
    options = "" if guard_database.kind != "mariadb" else " character set utf8mb4 collate utf8mb4_bin"
    async with guard_database.engine.connect() as connection:
        await run(connection, f"create table pasted (code varchar(60) primary key){options}")
        for value in VALUES:
            await run(connection, f"insert into pasted values ({sql_literal(value, dialect)})")
        for at, value in enumerate(VALUES, 1):
            finding = Finding("effect_not_undone", "s-1", place="shop.pasted", row={"code": value})
            place, _, statement = repair_command(finding, {"shop": dialect}).partition(": ")
            assert place == "shop"
            await run(connection, statement)
            assert tuple(await run(connection, "select count(*) from pasted")) == (len(VALUES) - at,), statement
        await run(connection, "drop table pasted")
