"""A parameter at several places of a statement has the form of each: it does what several parameters would do."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import product
from typing import Any

import pytest

from saga_activities.guard.sql_session import SqlSession
from sagas.protocol.outcomes import Outcome
from tests.helpers.sampling import scaled
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import clock, new_address

COLUMNS = {
    "postgres": {"label": "text", "price": "numeric", "n": "int", "doc": "jsonb", "tags": "numeric[]"},
    "mariadb": {"label": "varchar(60)", "price": "decimal(20, 8)", "n": "int", "doc": "json", "tags": "text"},
    "sqlite": {"label": "text", "price": "real", "n": "integer", "doc": "json", "tags": ""},
}
VALUES: list[Any] = [
    *(Decimal("0.1"), Decimal("0.0000001"), Decimal("2.0"), 5, 0, Decimal("12345678901.5"), True),
    *("x", "0.1", [], [5], [0, 1], [Decimal("0.5")], {"a": 1}),
]  # fmt: skip
SINGLE = (
    *("label = {}", "label <> {}", "price * 2 < {}", "price > {}", "n in ({})", "n = {}", "coalesce(n, 0) < {}"),
    *("case label when {} then 1 else 0 end = 0", "label not in (select {})", "n not in (select {})"),
)
"""Conditions that compare with a single value."""
CONDITIONS = (*SINGLE, "label in ({}, 'b')", "doc <> {}", "tags <> {}")


async def _fresh(tables: Tables) -> None:
    columns = COLUMNS[tables.kind]
    if not tables.names:
        await tables.sql(f"create table @place (id int primary key, {', '.join(map(' '.join, columns.items()))})")
    await tables.sql("delete from @place")
    own = "'{1}'" if tables.kind == "postgres" else "'[1]'"
    for id, label, price, n in ((1, "a", 100, 7), (2, "b", 0.01, 0), (3, "0.1", 0.1, 5)):
        await tables.sql(f"insert into @place values ({id}, '{label}', {price}, {n}, '[5]', {own})")


async def _rows(tables: Tables) -> list[str]:
    read = "place::text" if tables.kind == "postgres" else "*"
    return sorted(
        str(tuple(row)) for row in await tables.sql(f"select {read} from @place".replace("place::", "@place::"))
    )


async def _plain(tables: Tables, run: str, params: Mapping[str, Any]) -> Outcome:
    async def body(sql: SqlSession) -> Any:
        return await sql.execute(tables.named(run), params)

    return await tables.database.guard.do(new_address(), "h", body, **clock())


def _statement(chance: random.Random, columns: list[str]) -> tuple[str, Sequence[str], bool]:
    """A statement with `{}` at its places, its conditions, and whether it changes rows that exist."""
    conditions = chance.sample(CONDITIONS, chance.choice((1, 1, 2)))
    where = chance.choice((" and ", " or ")).join(conditions)
    assigned = ", ".join(f"{column} = {{}}" for column in chance.sample(columns, chance.choice((1, 1, 2))))
    match chance.randrange(4):
        case 0:
            return f"delete from @place where {where}", conditions, True
        case 1:
            return (
                f"insert into @place (id, label, price) select id + 10, {{}}, 1 from @place where {where}",
                conditions,
                False,
            )
    return f"update @place set {assigned} where {where}", conditions, True


@pytest.mark.sampled(keep=1)
async def test_each_place_has_its_own_form(tables: Tables) -> None:
    chance = random.Random(0)
    done = 0
    for number in range(scaled(20, 600)):
        statement, conditions, changes = _statement(chance, [*COLUMNS[tables.kind]])
        value = chance.choice(VALUES)
        places = statement.count("{}")
        names = [f":p{at}" for at in range(places)]
        about = (statement, value)
        await _fresh(tables)
        before = await _rows(tables)
        apart = await _plain(tables, statement.format(*names), {name[1:]: value for name in names})
        if (tables.kind, apart.kind, value) == ("postgres", "failed", "0.1"):
            # One parameter has the type `numeric`, which an integer is compared with as well; text alone is none.
            apart = await _plain(tables, statement.format(*names), {name[1:]: Decimal(value) for name in names})
        expected = await _rows(tables)
        await _fresh(tables)
        shared = await _plain(tables, statement.format(*[":v"] * places), {"v": value})
        rows = await _rows(tables)
        if shared.kind == "done":
            assert (apart.kind, rows) == ("done", expected), about
            done += 1
        else:  # PostgreSQL may find no type that a parameter has at each of its places
            assert rows == before, about
            assert not shared.retryable, (about, shared)
            assert apart.kind != "done" or tables.kind == "postgres", (about, shared)
        if isinstance(value, list | dict) and any(condition in SINGLE for condition in conditions):
            assert shared.failure is not None, about
            assert shared.failure.message.startswith("the parameter v is a"), about
        if changes:
            await _fresh(tables)
            automatic = await tables.do(
                [{"sql": statement.format(*[":v"] * places), "params": {"v": value}}], step=f"s{number}"
            )
            assert (automatic.kind, await _rows(tables)) == (shared.kind, rows), (about, automatic)
            assert not automatic.infrastructure, (about, automatic)
            if automatic.kind == "done":
                assert (await tables.undo(step=f"s{number}")).kind == "done", about
                assert await _rows(tables) == before, about
    assert done, "no statement has run"


async def test_a_number_is_not_text_on_postgresql(tables: Tables) -> None:
    await _fresh(tables)
    if tables.kind != "postgres":
        pytest.skip("the others make one of the other")
    for condition in ("label not in (select :v)", "label = :v"):
        refused = await tables.do([{"sql": f"delete from @place where {condition}", "params": {"v": 5}}])
        assert refused.failure is not None
        assert "a number and text are compared: cast the parameter" in refused.failure.message
        assert "such as `:v::text`" in refused.failure.message
    cast = {"sql": "delete from @place where label not in (select :v::text)", "params": {"v": 5}}
    assert ((await tables.do([cast])).kind, await _rows(tables)) == ("done", [])


async def test_a_column_of_text_has_the_text_that_is_also_compared(tables: Tables) -> None:
    await _fresh(tables)
    statements = {"price": ("update @place set label = :v where price < :v", "1e2")}
    if tables.kind == "postgres":
        statements["doc"] = ("update @place set label = :v where doc = :v", "[5 ]")
    for statement, value in statements.values():
        assert (await _plain(tables, statement, {"v": value})).kind == "done"
        assert (value,) in [tuple(row) for row in await tables.sql("select label from @place")]


@pytest.mark.sampled
@pytest.mark.parametrize("value", ["2026-01-01", "7", None, 7, Decimal("7.0")])
async def test_columns_of_different_types_get_one_parameter(tables: Tables, value: Any) -> None:
    types = {"d": "date", "z": "timestamp", "i": "int", "l": "bigint", "n": "numeric(9,2)", "t": "varchar(20)"}
    if not tables.names:
        await tables.sql(f"create table @pair (id int primary key, {', '.join(map(' '.join, types.items()))})")
    columns = ("d", "z", "t") if value == "2026-01-01" else ("d", *types) if value is None else ("i", "l", "n", "t")
    for first, last in product(columns, columns):
        if first == last:
            continue
        runs = [
            f"insert into @pair (id, {first}, {last}) values (1, :v, :v)",
            f"update @pair set {first} = :v, {last} = :v where id = 1",
        ]
        if value is None or isinstance(value, str):
            chosen = f"coalesce({first}, :v), coalesce({last}, :v)"
            runs.append(f"insert into @pair (id, {first}, {last}) select 2, {chosen} from @pair")
        for run in runs:
            outcome = await _plain(tables, run, {"v": value})
            assert outcome.kind == "done", (run, value, outcome)
        rows = await tables.sql(f"select {first} is null, {last} is null from @pair where id = 1")
        assert tuple(map(bool, rows[0])) == (value is None, value is None), (first, last)
        await tables.sql("delete from @pair")


async def test_an_expression_of_a_group_stays_the_selected_one(tables: Tables) -> None:
    await _fresh(tables)
    for key in ("coalesce(label, :v)", "label"):
        run = (
            f"insert into @place (id, label, price) select 10 + count(*), {key}, 1 from @place where label <> :v"
            f" group by {key} having count(*) > 0 order by {key} limit 1"
        )
        assert (await _plain(tables, run, {"v": "1"})).kind == "done", run
        await tables.sql("delete from @place where id > 10")


@pytest.mark.parametrize("value", ["1.50", "2026-01-01T10:00:00+02:00", "1.1.2026"])
async def test_a_refusal_has_the_name_of_the_author(tables: Tables, value: str) -> None:
    if tables.kind != "postgres":
        pytest.skip("the others take the same parameter at all places")
    if not tables.names:
        await tables.sql("create table @shown (label text, at timestamp(0))")
    refused = await _plain(tables, "update @shown set label = :v where at > :v", {"v": value})
    assert refused.failure is not None
    assert refused.failure.message.startswith(f"the parameter v is {value}, and PostgreSQL takes a timestamp")
