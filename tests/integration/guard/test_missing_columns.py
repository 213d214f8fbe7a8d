"""A statement that names a column which its table does not have: the database's own error says so."""

from __future__ import annotations

from decimal import Decimal

import pytest
import pytest_asyncio

from sagas.protocol.outcomes import Outcome
from tests.integration.guard.conftest import GuardDatabase
from tests.integration.guard.test_exact_sql_numbers import perform

TABLE = "create table if not exists short_orders (product varchar(60), quantity integer, price decimal(10, 2))"
PRICE = Decimal("4.90")
LONG = Decimal("9007199254740993.5")
"""No column of the table holds it, of no database."""


@pytest_asyncio.fixture
async def orders(guard_database: GuardDatabase) -> GuardDatabase:
    async with guard_database.engine.connect() as connection:
        await connection.exec_driver_sql(TABLE)
        await connection.exec_driver_sql("delete from short_orders")
        await connection.exec_driver_sql("insert into short_orders values ('pear', 1, 1)")
    return guard_database


def message(outcome: Outcome) -> str:
    assert outcome.failure is not None, outcome
    return outcome.failure.message


@pytest.mark.parametrize(
    "statement",
    [
        "insert into short_orders (product, total) values ('pear', :x)",
        "insert into short_orders (product, total) select 'pear', :x",
        "insert into short_orders (quantity, total) values (2, coalesce(:x, 0))",
        "update short_orders set total = :x where product = 'pear'",
        "update short_orders set quantity = 2, Total = :x",
        "insert into short_orders select 'total', 1, 2, :x",
    ],
)
async def test_the_database_says_so(orders: GuardDatabase, statement: str) -> None:
    # SQLite holds no decimal of this length at any place.
    said = message(await perform(orders, statement, x=str(LONG) if orders.kind == "sqlite" else LONG))
    assert "column" in said.lower()
    assert "total" in said.lower() or "'total'" in statement
    assert "the parameter" not in said


async def test_a_column_that_is_there_is_still_checked(orders: GuardDatabase) -> None:
    if orders.kind == "sqlite":
        pytest.skip("SQLite rounds no number of a column of integers")
    for statement in (
        "insert into short_orders (quantity) values (:x)",
        "update short_orders set QUANTITY = :x",
    ):
        said = message(await perform(orders, statement, x=PRICE))
        assert said.startswith("the parameter x is 4.90, and the column quantity of short_orders"), said


async def test_other_names_of_a_column_stay_checked(orders: GuardDatabase) -> None:
    """The name of a column after that of its table, or of one of several tables, is not taken for a missing one."""
    if orders.kind == "mariadb":
        async with orders.engine.connect() as connection:
            await connection.exec_driver_sql(
                "create table if not exists short_names (name varchar(60), pieces integer)"
            )
            await connection.exec_driver_sql("insert into short_names values ('pear', 1)")
        for statement in (
            "update short_orders join short_names on name = product set pieces = :x",
            "update short_orders set short_orders.quantity = :x",
            "insert into short_orders (short_orders.quantity) values (:x)",
        ):
            assert message(await perform(orders, statement, x=PRICE)).startswith("the parameter x is 4.90, "), statement
    elif orders.kind == "postgres":
        for statement in (
            r'insert into short_orders (U&"quant\0069ty") values (:x)',
            f"update short_orders set {'q' * 70} = :x",
        ):
            async with orders.engine.connect() as connection:
                await connection.exec_driver_sql(
                    f"alter table short_orders add column if not exists {'q' * 63} integer"
                )
            assert message(await perform(orders, statement, x=PRICE)).startswith("the parameter x is 4.90, "), statement
    else:
        said = message(await perform(orders, "update short_orders set rowid = :x", x=LONG))
        assert said.startswith(f"the parameter x is {LONG}, "), said
