"""Sagas that change one row after each other and are undone in any order: their effects are gone together, or some
undo is refused. What a later saga has changed back is as before an earlier one, until the later one is undone.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from saga_activities.automatic import row_locks
from tests.helpers.sampling import scaled
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import GuardDatabase

Row = int | None
"""The value of the row; None: it is not there."""


@pytest_asyncio.fixture
async def tables(guard_database: GuardDatabase) -> AsyncIterator[Tables]:
    tables = Tables(guard_database)
    await tables.sql("create table @t (id int primary key, n int)")
    yield tables
    await tables.drop()


def change(before: Row, after: Row) -> str:
    if before is None:
        return f"insert into @t values (1, {after})"
    return "delete from @t where id = 1" if after is None else f"update @t set n = {after} where id = 1"


async def value(tables: Tables) -> Row:
    rows = await tables.sql("select n from @t where id = 1")
    return rows[0][0] if rows else None


async def final_rows(tables: Tables, states: tuple[Row, ...], order: tuple[int, ...]) -> tuple[list[int], Row]:
    """Run a saga for each change between two states, then undo them in this order, and those that were refused once
    more at the end. Returns those that are not undone then, and the row.
    """
    await tables.sql("delete from @t", *([] if states[0] is None else [f"insert into @t values (1, {states[0]})"]))
    run = random.randrange(10**9)
    for number, (before, after) in enumerate(itertools.pairwise(states)):
        outcome = await tables.do([change(before, after)], saga=f"{run}-{number}")
        assert outcome.kind == "done", outcome
        await end(tables, f"{run}-{number}")
    refused = []
    for number in order:
        if (await tables.undo(saga=f"{run}-{number}")).kind != "done":
            refused.append(number)
        await end(tables, f"{run}-{number}")
    left = []
    for number in reversed(refused):
        if (await tables.undo(saga=f"{run}-{number}")).kind != "done":
            left.append(number)
        await end(tables, f"{run}-{number}")
    return left, await value(tables)


async def end(tables: Tables, saga: str) -> None:
    await row_locks.release(tables.database.engine, tables.entry(saga=saga).saga_id)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("states", "order"),
    [
        ((5, 4, 5), (0, 1)),
        ((None, 4, None), (0, 1)),
        ((5, None, 5), (0, 1)),
        ((5, 4, 3, 5), (0, 2, 1)),
        ((5, 4, 5, 4, 5), (0, 2, 3, 1)),
        ((5, 4, 5, 4, 5), (2, 0, 1, 3)),
    ],
)
async def test_what_another_saga_has_changed_back_does_not_come_again(
    tables: Tables, states: tuple[Row, ...], order: tuple[int, ...]
) -> None:
    assert await final_rows(tables, states, order) == ([], states[0])


async def test_any_order_of_undos(tables: Tables) -> None:
    rng = random.Random("undos")
    undone = 0
    for _ in range(scaled(4, 200)):
        states: list[Row] = [rng.choice([None, 4, 5])]
        while len(states) < rng.randint(3, 6):
            states.append(rng.choice([state for state in (None, 4, 5, 6) if state != states[-1]]))
        order = tuple(rng.sample(range(len(states) - 1), len(states) - 1))
        left, row = await final_rows(tables, tuple(states), order)
        assert left or row == states[0], (states, order)
        undone += not left
    assert undone
