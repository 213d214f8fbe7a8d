"""Numbers on their way into each database and out of it: with every digit, or refused before anything is written."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
import sqlalchemy as sa

from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.bodies.sql_action import sql_body
from saga_activities.bulk.chunk_performer import ChunkPerformer
from sagas.actions.registry import ACTION_ATTRIBUTE, Actions, action
from sagas.actions.step import Step
from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation, idempotency_key
from sagas.text.exact_json import decode_json
from tests.integration.guard.conftest import GuardDatabase, clock, new_address, new_attempt

EXACT = {"postgres": "numeric", "mariadb": "decimal(65, 30)", "sqlite": "numeric"}
TABLE = """
create table if not exists exact_numbers (
    id varchar(60) primary key, small smallint, big bigint, exact {exact}, price decimal(12, 2), ratio double precision,
    label varchar(200), doc {json}
)
"""
THIRTY = Decimal("123456789012345678.123456789012")
"""30 digits."""


@pytest_asyncio.fixture
async def numbers(guard_database: GuardDatabase) -> GuardDatabase:
    kind = guard_database.kind
    table = TABLE.format(exact=EXACT[kind], json={"postgres": "jsonb", "mariadb": "json", "sqlite": "text"}[kind])
    async with guard_database.engine.connect() as connection:
        await connection.exec_driver_sql(table)
    return guard_database


async def perform(database: GuardDatabase, run: str, **params: Any) -> Outcome:
    address = database.current = new_address()
    invocation = Invocation("sql", {}, str(address), address.saga_id, address.entry, "do", 1)
    body = sql_body({"run": run, "params": params}, invocation, new_attempt())
    return await database.guard.do(address, "h", body, **clock())


async def stored(database: GuardDatabase, column: str, id: str) -> Any:
    """The value as text: what the database itself says it holds."""
    as_text = {"postgres": f"{column}::text", "mariadb": f"cast({column} as char)", "sqlite": f"cast({column} as text)"}
    ((value,),) = await database.rows(f"select {as_text[database.kind]} from exact_numbers where id = :id", id=id)
    return value


async def insert(database: GuardDatabase, column: str, value: Any) -> tuple[Outcome, str]:
    id = uuid4().hex
    return await perform(database, f"insert into exact_numbers (id, {column}) values (:id, :v)", id=id, v=value), id


# Out of the database


async def test_results_are_numbers_with_their_digits(numbers: GuardDatabase) -> None:
    postgres = "select 1.10::numeric(5,2) a, 9223372036854775807 b, 123456789012345678.123456789012 c, 0.1::float8 d"
    lite = "select 12 a, 9223372036854775807 b, 12.5 c, 0.1 d"
    maria = "select cast(1.10 as decimal(5,2)) a, 9223372036854775807 b, 123456789012345678.123456789012 c, 0.1e0 d"
    outcome = await perform(numbers, {"postgres": postgres, "sqlite": lite, "mariadb": maria}[numbers.kind])
    a, c = (12, Decimal("12.5")) if numbers.kind == "sqlite" else (Decimal("1.10"), THIRTY)
    assert outcome.result == [{"a": a, "b": 2**63 - 1, "c": c, "d": Decimal("0.1")}]
    assert [str(value) for value in outcome.result[0].values()][::2] == [str(a), str(c)]
    again = await perform(numbers, f"select result from saga_guard where saga_id = '{numbers.current.saga_id}'")
    assert decode_json(again.result[0]["result"]) == outcome.result


async def test_a_number_that_json_does_not_have_is_refused_with_its_column(numbers: GuardDatabase) -> None:
    if numbers.kind != "postgres":
        pytest.skip("only PostgreSQL has such numbers")
    for value, shown in (("'NaN'::numeric", "NaN"), ("'-Infinity'::float8", "-inf")):
        outcome = await perform(numbers, f"select 1 as n, {value} as total")
        assert outcome.failure is not None
        assert outcome.failure.message == (
            f"{shown} cannot be stored: JSON has no such number, so give null or a string (field total)"
        )
        assert not outcome.retryable


async def test_json_columns_keep_their_digits(numbers: GuardDatabase) -> None:
    outcome, id = await insert(numbers, "doc", {"a": THIRTY, "b": [Decimal("1.10"), 2**63]})
    assert outcome.kind == "done"
    text = str(await stored(numbers, "doc", id)).replace(" ", "")
    assert text == '{"a":123456789012345678.123456789012,"b":[1.10,9223372036854775808]}'
    read = await perform(numbers, "select doc from exact_numbers where id = :id", id=id)
    document = read.result[0]["doc"]
    parsed = document if numbers.kind == "postgres" else decode_json(document)
    assert parsed == {"a": THIRTY, "b": [Decimal("1.10"), 2**63]}
    assert str(parsed["b"][0]) == "1.10"


# Into the database


@pytest.mark.parametrize(
    ("column", "value", "written"),
    [
        ("big", 2**53 + 1, "9007199254740993"),
        ("big", 2**63 - 1, "9223372036854775807"),
        ("big", Decimal("12.00"), "12"),
        ("big", Decimal("1E+2"), "100"),
        ("big", 0, "0"),
        ("price", Decimal("9876543210.10"), "9876543210.10"),
        ("price", Decimal("1.2300"), "1.23"),
        ("price", Decimal("-0.0"), "0.00"),
        ("ratio", Decimal("0.1"), "0.1"),
        ("label", Decimal("1.10"), "1.10"),
        ("label", Decimal("123456789012345678.123456789012"), "123456789012345678.123456789012"),
        ("label", 2**63 - 1, "9223372036854775807"),
    ],
)
async def test_a_number_is_stored_as_it_is(numbers: GuardDatabase, column: str, value: Any, written: str) -> None:
    outcome, id = await insert(numbers, column, value)
    assert outcome.kind == "done", outcome
    text = await stored(numbers, column, id)
    if (numbers.kind == "sqlite" and column != "label") or column == "price":
        assert Decimal(text) == Decimal(written)
    else:
        assert text == written


async def test_thirty_digits(numbers: GuardDatabase) -> None:
    outcome, id = await insert(numbers, "exact", THIRTY)
    if numbers.kind == "sqlite":
        assert outcome.failure is not None
        assert outcome.failure.message.startswith(
            f"the parameter v is {THIRTY}, and the column exact of exact_numbers (numeric) holds 64-bit integers"
            " and binary floats"
        )
        assert await numbers.rows("select id from exact_numbers where id = :id", id=id) == []
        return
    assert outcome.kind == "done", outcome
    assert Decimal(await stored(numbers, "exact", id)) == THIRTY


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("big", 2**63, "holds -9223372036854775808 to 9223372036854775807"),
        ("big", Decimal("12.5"), "holds integers only"),
        ("big", Decimal("1E+400"), "holds -9223372036854775808 to 9223372036854775807"),
        ("small", Decimal("40000.0"), "holds -32768 to 32767"),
        ("price", Decimal("0.005"), "holds 2 digits after the point and would round it"),
        ("price", Decimal("12345678901.5"), "holds 10 digits before the point"),
        ("ratio", Decimal("0.12345678901234567890"), "is a binary float and would round it"),
        ("ratio", 2**53 + 1, "is a binary float and would round it"),
    ],
)
async def test_more_digits_than_a_column_holds_are_refused(
    server_guard_database: GuardDatabase, column: str, value: Any, problem: str
) -> None:
    numbers = server_guard_database
    async with numbers.engine.connect() as connection:
        await connection.exec_driver_sql(TABLE.format(exact=EXACT[numbers.kind], json="text"))
    outcome, id = await insert(numbers, column, value)
    assert outcome.failure is not None, "it was stored"
    assert problem in outcome.failure.message
    assert f"the column {column} of exact_numbers" in outcome.failure.message
    assert not outcome.retryable
    assert await numbers.rows("select id from exact_numbers where id = :id", id=id) == []


@pytest.mark.parametrize("value", [2**63, Decimal("0.12345678901234567890"), Decimal("1E+400"), Decimal("NaN")])
async def test_more_digits_than_sqlite_holds_are_refused(numbers: GuardDatabase, value: Any) -> None:
    if numbers.kind != "sqlite":
        pytest.skip("the other databases refuse by the type of the column")
    for run in ("insert into exact_numbers (id, big) values (:id, :v)", "select :id as id where 1 < :v"):
        outcome = await perform(numbers, run, id=uuid4().hex, v=value)
        assert outcome.failure is not None
        named = ("64-bit integers and binary floats", "SQLite")
        assert any(words in outcome.failure.message for words in named), outcome.failure.message


@pytest.mark.parametrize("value", [Decimal("0." + "1" * 39), 10**65, Decimal("Infinity")])
async def test_more_digits_than_mariadb_holds_anywhere_are_refused(numbers: GuardDatabase, value: Any) -> None:
    if numbers.kind != "mariadb":
        pytest.skip("its literals have at most 65 digits")
    outcome = await perform(numbers, "select :v as v", v=value)
    assert outcome.failure is not None
    assert "MariaDB" in outcome.failure.message
    assert (await perform(numbers, "select :v as v", v=Decimal("1" * 27 + "." + "1" * 38))).result == [
        {"v": Decimal("1" * 27 + "." + "1" * 38)}
    ]


@pytest.mark.parametrize(
    "run",
    [
        "update exact_numbers set price = price - :v where id = :id",
        "update exact_numbers set price = coalesce(price, 0) + :v where id = :id",
        "update exact_numbers set price = case when price > 1 then :v else 0 end where id = :id",
        "insert into exact_numbers (id, price) select :id, :v",
    ],
)
async def test_an_amount_is_not_rounded_when_it_is_added(server_guard_database: GuardDatabase, run: str) -> None:
    numbers = server_guard_database
    async with numbers.engine.connect() as connection:
        await connection.exec_driver_sql(TABLE.format(exact=EXACT[numbers.kind], json="text"))
    _, id = await insert(numbers, "price", Decimal("10.00"))
    outcome = await perform(numbers, run, id=id, v=Decimal("0.005"))
    assert outcome.failure is not None, "it was rounded"
    assert "holds 2 digits after the point" in outcome.failure.message
    assert await stored(numbers, "price", id) == "10.00"
    rounded = await perform(
        numbers, "update exact_numbers set price = round(:v, 2) where id = :id", id=id, v=Decimal("0.005")
    )
    assert rounded.kind == "done", "the author rounds"


_DIGITS = ("1", "-1.0", "12.50", "-7", "123456789012345678901234567.890")
_EXPONENTS = (-(10**9), -10_000, -930, -400, -30, 3, 30, 400, 930, 10_000, 10**9)
_EXTREMES = [Decimal("-0"), Decimal("-0.0"), *(Decimal(f"{digits}e{at}") for digits in _DIGITS for at in _EXPONENTS)]


@pytest.mark.sampled(turns="guard_database")
@pytest.mark.parametrize("column", ["big", "exact", "price", "ratio", "label", "doc"])
async def test_any_exponent_is_stored_exactly_or_refused(numbers: GuardDatabase, column: str) -> None:
    for number in _EXTREMES:
        outcome, id = await insert(numbers, column, number)
        if outcome.kind == "done":
            text = await stored(numbers, column, id)
            assert len(text) <= 2_000
            assert Decimal(text) == number, number
        else:
            assert outcome.failure is not None
            assert not outcome.retryable, number
            assert len(outcome.failure.message) < 2_500, number
            assert await numbers.rows("select id from exact_numbers where id = :id", id=id) == []


async def test_lists_are_exact(numbers: GuardDatabase) -> None:
    if numbers.kind != "postgres":
        pytest.skip("arrays are PostgreSQL's")
    values = [THIRTY, Decimal("1.10"), 2**63]
    outcome = await perform(numbers, "select x::text as x from unnest(cast(:v as numeric[])) as x", v=values)
    assert [row["x"] for row in outcome.result] == ["123456789012345678.123456789012", "1.10", "9223372036854775808"]
    matched = await perform(numbers, "select 1 as n where :one = any(:v)", v=values, one=THIRTY)
    assert matched.result == [{"n": 1}]


# Python actions


@action("numbers.store", connection="shop")
async def store(step: Step, id: str, price: Decimal, amount: Decimal) -> dict[str, Any]:
    await step.sql.execute(
        "insert into exact_numbers (id, price, label) values (:id, :p, :l)", id=id, p=price, l=str(amount)
    )
    step.emit("numbers", key=id, value={"amount": amount})
    return {"amount": amount, "price": await step.sql.scalar("select price from exact_numbers where id = :id", id=id)}


@action("numbers.construct", connection="shop")
async def construct(step: Step, id: str, price: Decimal) -> None:
    table = sa.table("exact_numbers", sa.column("id"), sa.column("price", sa.Numeric))
    await step.sql.execute(sa.insert(table).values(id=id, price=price))


BODIES = ActionBodies(Actions([getattr(store, ACTION_ATTRIBUTE), getattr(construct, ACTION_ATTRIBUTE)]))


async def call(database: GuardDatabase, name: str, **arguments: Any) -> Outcome:
    address = database.current = new_address()
    invocation = Invocation(name, arguments, str(address), address.saga_id, address.entry, "do", 1)
    return await database.guard.do(address, "h", BODIES.body(name, arguments, invocation, new_attempt()), **clock())


async def test_a_python_action_receives_and_returns_exact_numbers(numbers: GuardDatabase) -> None:
    outcome = await call(numbers, "numbers.store", id=uuid4().hex, price=Decimal("12.50"), amount=THIRTY)
    assert outcome.kind == "done", outcome
    assert outcome.result == {"amount": THIRTY, "price": Decimal("12.5")}
    ((value,),) = await numbers.rows("select value from saga_outbox where saga_id = :s", s=numbers.current.saga_id)
    assert value == '{"amount":123456789012345678.123456789012}'


async def test_a_statement_built_with_sqlalchemy_is_checked_too(numbers: GuardDatabase) -> None:
    id = uuid4().hex
    outcome = await call(numbers, "numbers.construct", id=id, price=Decimal("0.12345678901234567890"))
    assert outcome.failure is not None, "it was rounded"
    assert await numbers.rows("select id from exact_numbers where id = :id", id=id) == []
    assert (await call(numbers, "numbers.construct", id=id, price=Decimal("1.25"))).kind == "done"


# Chunks


async def test_a_chunk_writes_each_number_and_refuses_the_one_that_does_not_fit(numbers: GuardDatabase) -> None:
    values = [Decimal("1.25"), Decimal("0.12345678901234567890"), Decimal("2.50")]
    run = "insert into exact_numbers (id, price) values (:id, :v)"
    calls = []
    for value in values:
        saga_id = f"saga-{uuid4()}"
        arguments = {"connection": "shop", "run": run, "params": {"id": saga_id, "v": value}}
        key = idempotency_key(saga_id, "store", 1)
        guard = GuardSpec("shop")
        calls.append(Invocation("sql", arguments, key, saga_id, "store", "do", 1, timeout=10.0, guard=guard))
    outcomes = await ChunkPerformer(numbers.guard, BODIES).perform(calls, new_attempt())
    assert [outcome and outcome.kind for outcome in outcomes] == ["done", "failed", "done"]
    written = [await numbers.rows("select price from exact_numbers where id = :id", id=call.saga_id) for call in calls]
    assert [[Decimal(str(price)) for (price,) in rows] for rows in written] == [[values[0]], [], [values[2]]]


@pytest.mark.parametrize(
    ("value", "holds"),
    [
        (16_777_216, {"postgres", "sqlite"}),  # 2^24; MariaDB would store it, and writes only 6 digits
        (16_777_217, {"sqlite"}),
        (123_456_789, {"sqlite"}),
        (Decimal("123456.789"), {"sqlite"}),
        (Decimal("123456.79"), {"postgres", "sqlite"}),
        (Decimal("12.505"), {"postgres", "mariadb", "sqlite"}),
        (2**53 + 1, set()),
        (Decimal(2**53 + 1), set()),
    ],
)
async def test_a_float_of_four_or_eight_bytes_takes_only_what_it_gives_back(
    guard_database: GuardDatabase, value: Any, holds: set[str]
) -> None:
    """SQLite has only floats of eight bytes."""
    async with guard_database.engine.connect() as connection:
        type_ = "float" if guard_database.kind == "mariadb" else "real"
        await connection.exec_driver_sql(f"create table if not exists floats (id varchar(60) primary key, v {type_})")
    id = uuid4().hex
    outcome = await perform(guard_database, "insert into floats (id, v) values (:id, :v)", id=id, v=value)
    rows = await guard_database.rows("select v from floats where id = :id", id=id)
    if guard_database.kind not in holds:
        assert (outcome.kind, rows) == ("failed", []), outcome
    else:
        assert [Decimal(str(v)) for (v,) in rows] == [value]


async def test_a_list_of_numbers_equals_the_floats_that_are_written_so(guard_database: GuardDatabase) -> None:
    if guard_database.kind != "postgres":
        pytest.skip("only PostgreSQL has arrays")
    async with guard_database.engine.connect() as connection:
        await connection.exec_driver_sql(
            "create table if not exists single_floats (id int primary key, f real, d float8)"
        )
        await connection.exec_driver_sql("insert into single_floats values (1, 0.1, 0.1) on conflict do nothing")
    for column in ("f", "d"):
        query = f"select id from single_floats where {column} = any(:v)"
        outcome = await perform(guard_database, query, v=[Decimal("0.10"), None, 7])
        assert outcome.result == [{"id": 1}], outcome
        outcome = await perform(guard_database, query, v=[2**53 + 1, Decimal("0.1")])
        assert outcome.failure is not None
        assert "which would be another number" in outcome.failure.message


async def test_a_year_takes_no_fraction(guard_database: GuardDatabase) -> None:
    if guard_database.kind != "mariadb":
        pytest.skip("only MySQL and MariaDB have the type")
    async with guard_database.engine.connect() as connection:
        await connection.exec_driver_sql("create table if not exists years (y year)")
    outcome = await perform(guard_database, "insert into years (y) values (:v)", v=Decimal("26.5"))
    assert outcome.failure is not None
    assert "holds integers only" in outcome.failure.message
