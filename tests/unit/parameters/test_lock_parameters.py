"""The parameters by which a statement finds the rows that it locks."""

from __future__ import annotations

import pytest

from sagas.sql_text.lock_order import lock_parameters
from sagas.sql_text.parsed import parse_sql


@pytest.mark.parametrize(
    ("dialect", "statement", "parameters"),
    [
        ("postgresql", "update stock set free = free - :n where free >= :n and sku = :sku", ["sku"]),
        ("postgresql", "delete from stock where (store, sku) = (:store, :sku)", ["store", "sku"]),
        ("postgresql", "delete from stock where sku in (:first, :second)", ["first", "second"]),
        ("postgresql", "select * from stock where sku = :sku::text for update", ["sku"]),
        (
            "postgresql",
            "update stock set free = stock.free + :n from line where line.sku = stock.sku and line.id = :line",
            ["line"],
        ),
        (
            "postgresql",
            "insert into stock (free, sku) values (:n, :sku) on conflict (sku) do update set free = stock.free + :n",
            ["sku", "n"],
        ),
        (
            "mariadb",
            "insert into stock (free, sku) values (:n, :sku) on duplicate key update free = free + :n",
            ["sku", "n"],
        ),
        ("mariadb", "update stock set free = free - :n where sku <=> :sku", ["sku"]),
        ("sqlite", "insert into stock values (:sku, :n)", ["sku", "n"]),
        ("sqlite", "update stock set free = case when kind = :kind then :n else 0 end", []),
        ("postgresql", "this is not a statement of :any", []),
    ],
)
def test_the_parameters_of_the_rows_come_first(dialect: str, statement: str, parameters: list[str]) -> None:
    assert list(lock_parameters(parse_sql(statement, dialect))) == parameters
