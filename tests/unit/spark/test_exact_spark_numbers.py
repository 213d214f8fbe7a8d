"""Numbers are compared and added in as many digits as they have, as Python's decimals of unlimited precision do."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from saga_spark.reconcile.exact_numbers import define_exact_numbers, exact_number, exact_sums, exact_within

EXACT = Context(prec=2_000, Emax=MAX_EMAX, Emin=MIN_EMIN)
TOLERANCES = ("1e-35", "0.000000001", "0.01", "1e20")


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as opened, localcontext(EXACT):
        define_exact_numbers(opened)
        yield opened


def number_texts(chance: random.Random, count: int) -> list[str]:
    texts: list[str] = []
    for _ in range(count):
        digits = "".join(chance.choice("0001259") for _ in range(chance.choice((1, 1, 2, 5, 20, 40))))
        point = chance.randrange(len(digits) + 1)
        text = chance.choice(("", "-", "+")) + digits[:point] + chance.choice(("", ".")) + digits[point:]
        texts.append(text + chance.choice(("", "", f"e{chance.randrange(-40, 40)}")))
    return texts


def canonical(text: str) -> str:
    number = Decimal(text)
    whole, _, fraction = format(number, "f").partition(".")
    return "0" if not number else whole + ("." + fraction.rstrip("0") if fraction.rstrip("0") else "")


def values(connection: duckdb.DuckDBPyConnection, query: str, **columns: list[Any]) -> list[tuple[Any, ...]]:
    table = pa.table({name: pa.array(column) for name, column in columns.items()})
    connection.register("given", table)
    return connection.execute(query).fetchall()


def test_equal_numbers_are_equal_texts(connection: duckdb.DuckDBPyConnection) -> None:
    texts = [*number_texts(random.Random(1), 3_000), "0E-20", "-0.00", "1E-16383", "9" * 5_000, " 3 "]
    rows = values(connection, f"SELECT {exact_number('t')} FROM given", t=texts)
    assert [row[0] for row in rows] == [canonical(text) for text in texts]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("nan", "NaN"), ("-inf", "-Infinity"), ("Infinity", "Infinity"), ("", ""), (".", "."), ("e5", "e5"),
     ("1.2.3", "1.2.3"), ("1e999999999", "1e999999999")],
)  # fmt: skip
def test_what_is_no_finite_number_is_kept(connection: duckdb.DuckDBPyConnection, text: str, wanted: str) -> None:
    assert values(connection, f"SELECT {exact_number('t')} FROM given", t=[text]) == [(wanted,)]


@pytest.mark.parametrize("tolerance", [Decimal(text) for text in TOLERANCES])
def test_a_tolerance_is_exact(connection: duckdb.DuckDBPyConnection, tolerance: Decimal) -> None:
    chance = random.Random(2)
    left = [canonical(text) for text in number_texts(chance, 2_000)]
    steps = [
        chance.choice((Decimal(0), tolerance, -tolerance, tolerance * 2, tolerance + Decimal("1e-40"))) for _ in left
    ]
    right = [canonical(str(Decimal(text) + step)) for text, step in zip(left, steps, strict=True)]
    rows = values(connection, f"SELECT {exact_within('l', 'r', tolerance)} FROM given", l=left, r=right)
    assert [row[0] for row in rows] == [abs(step) <= tolerance for step in steps]
    assert values(connection, f"SELECT {exact_within('l', 'r', tolerance)} FROM given", l=["NaN"], r=["5"]) == [
        (False,)
    ]


def test_sums_are_exact(connection: duckdb.DuckDBPyConnection) -> None:
    chance = random.Random(3)
    keys = [chance.randrange(100) for _ in range(600)]
    texts = [canonical(text) for text in number_texts(chance, 600)]
    wanted: dict[int, Decimal] = defaultdict(Decimal)
    for key, text in zip(keys, texts, strict=True):
        wanted[key] += Decimal(text)
    query = exact_sums("given", "k", ["a"])
    sums = dict(values(connection, query, k=keys, a=texts))
    assert sums == {key: canonical(str(number)) for key, number in wanted.items()}
    assert dict(values(connection, query, k=[1, 1, 2], a=["NaN", "5", None])) == {1: "5 + NaN", 2: None}
