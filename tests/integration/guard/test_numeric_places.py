"""Text that is a number where PostgreSQL would take it for a binary float or an integer: all digits count."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tests.integration.guard.conftest import GuardDatabase
from tests.integration.guard.test_exact_sql_forms import execute

BIG = "123456789012345678.91"
START = Decimal("10000000000000000.00")
STATEMENTS = [
    ("update numeric_places set a = abs(:v)", "-" + BIG, Decimal(BIG)),
    ("update numeric_places set a = ceil(:v)", BIG, Decimal("123456789012345679.00")),
    ("update numeric_places set a = round(:v, 1)", BIG, Decimal("123456789012345678.90")),
    ("update numeric_places set a = a - :v where abs(:v) > 1", "3.10", START - Decimal("3.10")),
    (
        "update numeric_places set a = a + sign(:v) * :v",
        " 1234567890123456.78 ",
        START + Decimal("1234567890123456.78"),
    ),
    ("update numeric_places set a = a + power(:v, 2)", "100000001", START + 100000001**2),
    ("update numeric_places set a = a - abs(:v), d = :v", "0.10", START - Decimal("0.10")),
    ("update numeric_places set a = a + 1 where abs(d) = abs(:v)", "0.25", START + 1),
    ("update numeric_places set a = abs(:v::float8)", "0.5", Decimal("0.50")),
    ("update numeric_places set a = 2 * :v", "2.50", Decimal("5.00")),
    ("update numeric_places set a = n * :v", "2.50", Decimal("7.50")),
    ("update numeric_places set a = n + -(:v - 1)", "2.5", Decimal("1.50")),
    ("update numeric_places set a = 2 * :v", "3000000000", Decimal("6000000000.00")),
    ("update numeric_places set a = 1 where n > :v", "2.5", Decimal("1.00")),
    ("update numeric_places set a = 1 where n between :v and 4", "2.5e0", Decimal("1.00")),
    ("update numeric_places set a = 1 where n in (:v)", "3.0", Decimal("1.00")),
    ("update numeric_places set a = 1 where n = :v", "2.5", START),
    ("update numeric_places set a = greatest(n, :v)", "3.5", Decimal("3.50")),
    ("update numeric_places set a = (select n * s.v from (select :v::numeric as v) s)", "2.5", Decimal("7.50")),
]


@pytest.mark.parametrize(("statement", "value", "expected"), STATEMENTS)
async def test_functions_compute_with_all_digits(
    server_guard_database: GuardDatabase, statement: str, value: str, expected: Decimal
) -> None:
    database = server_guard_database
    if database.kind != "postgres":
        pytest.skip("the others are tested with all operands")
    async with database.engine.connect() as connection:
        await connection.exec_driver_sql("drop table if exists numeric_places")
        await connection.exec_driver_sql("create table numeric_places (a numeric(38, 2), d double precision, n int)")
        await connection.exec_driver_sql(f"insert into numeric_places values ({START}, 0.25, 3)")
    outcome = await execute(database, statement, v=value)
    assert outcome.kind == "done", outcome
    assert await database.rows("select a from numeric_places") == [(expected,)]
