"""Text with numbers that PostgreSQL would round inside arrays, composite values, amounts and points, or as operands."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tests.integration.guard.conftest import GuardDatabase
from tests.integration.guard.test_exact_sql_forms import check_refusal, execute

SCHEMA = """
drop table if exists text_literals;
drop type if exists literal_pair;
drop domain if exists literal_amount;
create domain literal_amount as numeric(9, 2);
create type literal_pair as (n numeric(9, 2), f real, c varchar(3), ns numeric(9, 2)[]);
create table text_literals (
    n numeric(9, 2), na numeric(9, 2)[], da literal_amount[], va varchar(3)[], ca char(3)[], m money, ma money[],
    f real, fa real[], d double precision, pair literal_pair, pairs literal_pair[], p point, c circle, doc json,
    t text, ta text[]
);
"""
INSERTS = [
    ("na", "{1.005}"), ("na", "{{1.005}}"), ("na", "[0:0]={1.005}"), ("na", '{"1.005"}'), ("da", "{1.005}"),
    ("va", '{"abc  "}'), ("ca", '{"abc  "}'), ("ma", "{12.345}"), ("m", "12.345"), ("m", "$1,012.345"),
    ("m", "($0.005)"), ("fa", "{0.123456789,1}"), ("fa", "{16777217}"), ("pair", "(1.005,,,)"),
    ("pair", "(1,16777217,,)"), ("pair", '(1,1,"abc ",)'), ("pair", '(1,1,a,"{1,1.005}")'), ("pairs", '{"(1.005,,,)"}'),
    ("pairs", ["(1.005,,,)"]),
    ("p", "(0.1234567890123456789,1)"), ("p", "1,9007199254740993"), ("c", "<(0.1234567890123456789,1),1>"),
]  # fmt: skip
STATEMENTS = [
    ("update text_literals set na = na || :v", "{1.005}"),
    ("update text_literals set na = array_cat(na, :v)", "{1.005}"),
    ("update text_literals set na = :v::numeric[]", "{1.005}"),
    ("update text_literals set na[1:1] = :v", "{1.005}"),
    ("update text_literals set na = coalesce(:v, '{}')", "{1.005}"),
    ("update text_literals set t = 'x' where m = :v", "12.345"),
    ("update text_literals set t = 'x' where m <= :v", "12.345"),
    ("update text_literals set m = m + :v", "12.345"),
    ("update text_literals set t = 'x' where ma = :v", "{12.345}"),
    ("update text_literals set t = 'x' where m = any(:v)", "{12.345}"),
    ("update text_literals set t = 'x' where f = :v", "16777217"),
    ("update text_literals set t = 'x' where fa = :v", "{16777217}"),
    ("update text_literals set t = 'x' where f = :v", Decimal(16777217)),
    ("update text_literals set t = 'x' where f between 1 and :v", 16777217),
    ("update text_literals set t = 'x' where d = :v and abs(f) > 0", "0.12345678901234567890"),
    ("update text_literals set t = 'x' where d in (:v)", Decimal("0.12345678901234567890")),
    ("update text_literals set t = 'x' where :v < d", 9007199254740993),
    ("update text_literals set t = 'x' where p ~= :v", "(0.1234567890123456789,1)"),
]
HELD = [
    ("na", "{1.10,NULL,2}", "{1.10,NULL,2.00}"), ("va", '{"abc","a b"}', '{abc,"a b"}'), ("m", "12.35", "$12.35"),
    ("m", "$1,012.50", "$1,012.50"), ("ma", "{12.35}", "{$12.35}"), ("fa", "{0.1,16777216}", "{0.1,1.6777216e+07}"),
    ("pair", '(1.10,0.5,abc,"{1.1}")', "(1.10,0.5,abc,{1.10})"), ("p", "(0.1,-2.5e3)", "(0.1,-2500)"),
    ("c", "<(0.1,1),1>", "<(0.1,1),1>"), ("t", "{1.005}", "{1.005}"), ("t", "(1.005,)", "(1.005,)"),
    ("ta", "{1.005,(2.0001)}", "{1.005,(2.0001)}"), ("t", "$12.345", "$12.345"), ("doc", {"n": 1.005}, '{"n":1.005}'),
]  # fmt: skip
AUTHOR = [
    ("update text_literals set na = :v::numeric(9, 2)[]", "{1.005}"),
    ("update text_literals set t = 'x' where m = :v::money", "12.345"),
    ("update text_literals set t = 'x' where na = :v", "{1.005}"),
    ("update text_literals set t = 'x' where f = :v", "0.1"),
    ("update text_literals set t = 'x' where n = :v", "1.00500000001"),
]


async def test_text_with_numbers_is_stored_whole_or_refused(server_guard_database: GuardDatabase) -> None:
    database = server_guard_database
    if database.kind != "postgres":
        pytest.skip("no other database has these types")
    async with database.engine.connect() as connection:
        for statement in SCHEMA.split(";\n"):
            if statement.strip():
                await connection.exec_driver_sql(statement)
    for column, value in INSERTS:
        outcome = await execute(database, f"insert into text_literals ({column}) values (:v)", v=value)
        check_refusal(outcome, column, value)
    assert await database.rows("select * from text_literals") == []
    for column, value, shown in HELD:
        outcome = await execute(database, f"insert into text_literals ({column}) values (:v)", v=value)
        assert outcome.kind == "done", (column, value, outcome)
        assert await database.rows(f"select {column}::text from text_literals") == [(shown,)], (column, value)
        await execute(database, "delete from text_literals")
    for statement, value in STATEMENTS:
        check_refusal(await execute(database, statement, v=value), statement, value)
    await execute(database, "insert into text_literals (f, d) values (0.1, 0.1)")
    for column in ("f", "d"):
        for value in ("0.1", Decimal("0.1"), 0.1):
            kind = f"{column} {type(value).__name__}"
            await execute(database, f"update text_literals set t = '{kind}' where {column} = :v", v=value)
            assert await database.rows("select t from text_literals") == [(kind,)], value
    for statement, value in AUTHOR:
        assert (await execute(database, statement, v=value)).kind == "done", (statement, value)
