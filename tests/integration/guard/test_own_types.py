"""Types of PostgreSQL that are none of its own: a number is stored as it was given, or refused before the effect."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from tests.integration.guard.conftest import GuardDatabase
from tests.integration.guard.test_exact_sql_forms import execute

SCHEMA = """
create extension if not exists vector;
create extension if not exists cube;
create extension if not exists citext;
create extension if not exists isn;
drop table if exists own_types;
drop type if exists own_reading cascade;
drop type if exists own_span cascade;
drop domain if exists own_place cascade;
drop domain if exists own_cents cascade;
create domain own_place as cube;
create domain own_cents as numeric(9, 2);
create type own_span as range (subtype = float8);
create type own_price_span as range (subtype = own_cents);
create type own_reading as (at own_place, weight numeric);
create table own_types (
    v vector(2), h halfvec(2), c cube, d own_place, ca cube[], s own_span, sm own_multirange, ps own_price_span,
    r own_reading, t citext, i isbn13, nr numrange, tr tsrange
);
""".replace("(subtype = float8)", "(subtype = float8, multirange_type_name = own_multirange)").replace(
    "drop type if exists own_span", "drop type if exists own_price_span cascade; drop type if exists own_span"
)
LONG = "0.12345678901234567890"
REFUSED = [
    ("v", f"[{LONG},1]"), ("v", [Decimal("0.123456789"), 1]), ("v", [0.123456789, 0.5]), ("h", "[0.1,2]"),
    ("c", f"({LONG}, 1)"), ("c", LONG), ("d", f"({LONG}, 1)"), ("ca", '{"(' + LONG + ', 1)"}'),
    ("s", f"[{LONG},1)"), ("sm", "{[0,1),[2," + "2" + LONG[1:] + "]}"), ("ps", "[1.005,2)"),
    ("r", f'("({LONG})",1)'), ("tr", "[2026-01-01 10:00:00+02,)"),
]  # fmt: skip
HELD: list[tuple[str, Any, str]] = [
    ("v", "[0.25,-1]", "[0.25,-1]"), ("v", [Decimal("0.10"), 2], "[0.1,2]"), ("h", "[0.5,2]", "[0.5,2]"),
    ("c", "(0.1, -1.50),(2,3)", "(0.1, -1.5),(2, 3)"), ("d", "(0.1)", "(0.1)"), ("ca", '{"(0.1, 1)"}', '{"(0.1, 1)"}'),
    ("s", "[0.10,1)", "[0.1,1)"), ("sm", "{[0.5,1)}", "{[0.5,1)}"), ("ps", "[1.1,2)", "[1.10,2.00)"),
    ("r", f'("(0.1)",{LONG})', f'("(0.1)",{LONG})'), ("t", LONG, LONG),
    ("i", "9780393040029", "978-0-393-04002-9"), ("nr", f"[{LONG},1)", f"[{LONG},1)"),
    ("tr", "[2026-01-01 10:00:00,)", '["2026-01-01 10:00:00",)'),
]  # fmt: skip
STATEMENTS = [
    ("update own_types set t = 'x' where c = :v", f"({LONG}, 1)"),
    ("update own_types set t = 'x' where v <-> :v < 1", "[0.123456789,1]"),
    ("update own_types set t = 'x' where s @> :v", LONG),
    ("update own_types set t = 'x' where s && :v", f"[{LONG},1)"),
    ("update own_types set c = cube_union(c, :v)", f"({LONG})"),
]
AUTHOR: list[tuple[str, Any]] = [
    ("insert into own_types (v) values (:v::vector)", "[0.123456789,1]"),
    ("insert into own_types (v) values (:v::vector)", [Decimal("0.123456789"), 1]),
    ("insert into own_types (c) values (:v::cube)", f"({LONG})"),
]


async def test_a_number_of_another_type_is_stored_whole_or_refused(server_guard_database: GuardDatabase) -> None:
    database = server_guard_database
    if database.kind != "postgres":
        pytest.skip("no other database has such types")
    async with database.engine.connect() as connection:
        for statement in filter(str.strip, SCHEMA.split(";")):
            await connection.exec_driver_sql(statement)
    inserts = [(f"insert into own_types ({column}) values (:v)", value) for column, value in REFUSED]
    for statement, value in [*inserts, *STATEMENTS]:
        outcome = await execute(database, statement, v=value)
        assert (outcome.kind, outcome.retryable) == ("failed", False), (statement, value, outcome)
        assert outcome.failure is not None
        assert outcome.failure.message.startswith("the parameter v is "), (statement, value, outcome)
    assert await database.rows("select 1 from own_types") == []
    for column, value, shown in HELD:
        outcome = await execute(database, f"insert into own_types ({column}) values (:v)", v=value)
        assert outcome.kind == "done", (column, value, outcome)
        assert await database.rows(f"select {column}::text from own_types") == [(shown,)], (column, value)
        await execute(database, "delete from own_types")
    for statement, value in AUTHOR:
        assert (await execute(database, statement, v=value)).kind == "done", (statement, value)
