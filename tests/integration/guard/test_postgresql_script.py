"""Scripts of the engine's own statements on PostgreSQL: values are literals in them, whatever they contain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from saga_activities.guard.postgresql_script import Value, rows_of, run_script
from tests.helpers.database_servers import DatabaseServer

TEXTS = ["", "a'b", "'; drop table t; --", "a\\b\\'", "%s %% %", "€ 𝄞", "\n\t", "NULL"]


@pytest.fixture
async def connection(postgres_server: DatabaseServer) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    url = postgres_server.url().replace("+psycopg", "")
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("conforming", ["on", "off"])
async def test_a_text_is_what_was_given(connection: psycopg.AsyncConnection[Any], conforming: str) -> None:
    await run_script(connection, "SELECT set_config('standard_conforming_strings', %s, false)", (conforming,))
    values = ", ".join(["%s"] * len(TEXTS))
    results = await run_script(connection, f"SELECT 1; SELECT {values}; SELECT '100 %%'", TEXTS)
    assert [rows_of(result) for result in results] == [[(1,)], [tuple(TEXTS)], [("100 %",)]]


@pytest.mark.parametrize("value", [0, -7, 1 << 40, None])
async def test_a_number_is_what_was_given(connection: psycopg.AsyncConnection[Any], value: Value) -> None:
    (result,) = await run_script(connection, "SELECT %s::bigint", (value,))
    assert rows_of(result) == [(value,)]


@pytest.mark.parametrize("value", [1764449760.123456, 0.1, 1e-7, -1.5e300])
async def test_a_time_keeps_every_digit(connection: psycopg.AsyncConnection[Any], value: float) -> None:
    (result,) = await run_script(connection, "SELECT (%s)::float8 = (%s)::float8", (value, repr(value)))
    assert rows_of(result) == [("t",)]


async def test_a_text_with_nul_is_refused_before_it_is_sent(connection: psycopg.AsyncConnection[Any]) -> None:
    with pytest.raises(psycopg.DataError, match="NUL"):
        await run_script(connection, "SELECT %s", ("a\0b",))
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


async def test_an_error_of_any_statement_is_raised(connection: psycopg.AsyncConnection[Any]) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        await run_script(connection, "BEGIN; SELECT 1 / %s; SELECT 2", (0,))
    results = await run_script(connection, "COMMIT; SELECT 3", ())
    assert results[0].command_status == b"ROLLBACK"
    assert rows_of(results[1]) == [(3,)]
