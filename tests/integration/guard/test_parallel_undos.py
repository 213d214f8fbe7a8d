"""Steps of one saga that share rows, references and unique values are undone in any order; every row is as before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import permutations
from pathlib import Path
from random import Random

import pytest

from saga_activities.automatic import row_locks
from sagas.protocol import undo_scopes
from tests.helpers.sampling import every_nth, scaled
from tests.integration.guard.automatic_steps import Tables
from tests.integration.guard.conftest import database_url, open_guard_database
from tests.integration.guard.parallel_undos import (
    CREATE,
    ParallelStep,
    Steps,
    generate,
    play,
    shared_basket,
    undo,
    undo_all,
)

KINDS = ("postgres", "mariadb", "sqlite")
CASES = ("confirmed", "inexact", "between", "basket", "code", "rows")
everywhere = pytest.mark.parametrize("kind", KINDS)
pytestmark = pytest.mark.sampled(turns="kind")
"""The cases; what is generated runs on each of them."""
SEEDS = scaled(range(4), range(1000))
COUNTER = "select n from @counter where id = 1"
ADD = "update @counter set n = n + {} where id = 1"


def cases(kind: str) -> dict[str, Steps]:
    """The names of the steps say what they do; each comment is what the undo in another order met."""
    return {
        "confirmed": {  # the undo of a confirmed step never looked at its images
            "a": ParallelStep([ADD.format(10)]),
            "b": ParallelStep([ADD.format(1)], confirmed=[ADD.format(-1)]),
            "c": ParallelStep([ADD.format(100)]),
        },
        "inexact": {  # the row was as neither step had left it, though nobody else had changed it
            "a": ParallelStep([ADD.format(10)]),
            "b": ParallelStep([ADD.format(1)], confirmed=[ADD.format(-5)], confirm=[ADD.format(1000)]),
            "c": ParallelStep([ADD.format(100)]),
        },
        "between": {  # b restored the changes of a and d, and skipped that of c, which lies between them
            "a": ParallelStep([ADD.format(7)]),
            "b": ParallelStep([ADD.format(1)], confirmed=[ADD.format(-1)], confirm=[ADD.format(50)]),
            "c": ParallelStep([ADD.format(3)], confirmed=[ADD.format(-3)]),
            "d": ParallelStep([ADD.format(1)]),
        },
        "basket": {  # "still referenced from table line"
            f"f#{item}": ParallelStep([shared_basket(kind, 1), f"insert into @line values ({item}, 1)"])
            for item in (2, 0, 1)
        },
        "code": {  # "duplicate key"
            "deletes": ParallelStep(["delete from @place where id = 1"]),
            "inserts": ParallelStep(["insert into @place values (12, 'a', 12)"]),
            "updates": ParallelStep(["update @place set pos = 1 where id = 12"]),
        },
        "rows": {  # one row has gone to b, one to c, and the third had to wait for that of b
            "a": ParallelStep(["update @place set code = 'x' where id = 2", "update @place set pos = pos + 10"]),
            "b": ParallelStep(["update @place set pos = 3 where id = 1"]),
            "c": ParallelStep(["update @place set code = 'y' where id = 2"]),
        },
    }


@asynccontextmanager
async def _tables(kind: str, request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Tables]:
    database = await open_guard_database(kind, database_url(kind, request, folder))
    tables = Tables(database)
    await tables.sql(*CREATE)
    yield tables
    await tables.drop()
    await database.connections.close()


async def _restored(tables: Tables, steps: Steps, order: list[str], saga: str) -> int:
    """The number of steps that were undone."""
    before = await tables.dump()
    done = await play(tables, steps, saga)
    await undo_all(tables, steps, [name for name in order if name in done], saga)
    await row_locks.release(tables.database.engine, tables.entry(saga=saga).saga_id)
    assert await tables.dump() == before, (steps, order)
    return len(done)


@everywhere
@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES)
async def test_parallel_steps_are_undone_in_any_order(
    case: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    steps = cases(kind)[case]
    async with _tables(kind, request, tmp_path) as tables:
        for number, order in enumerate(every_nth(3, permutations(steps), turn=KINDS.index(kind))):
            assert await _restored(tables, steps, list(order), f"saga{number}") == len(steps)


@everywhere
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ADD.format(1), ADD.format(2)),  # the row was changed later
        ("insert into @basket (id) values (9)", "insert into @line values (9, 9)"),  # the row is still referenced
    ],
)
async def test_an_undo_names_those_to_which_it_leaves_rows(
    first: str, second: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    steps = {"first": ParallelStep([first]), "second": ParallelStep([second])}
    async with _tables(kind, request, tmp_path) as tables:
        before = await tables.dump()
        await play(tables, steps, "saga")
        outcome = await undo(tables, "first", steps["first"])
        assert outcome.result == {"restored": 0, "left_to": ["second"]}
        assert "left_to" not in (await undo(tables, "second", steps["second"])).result
        await row_locks.release(tables.database.engine, tables.entry(saga="saga").saga_id)
        assert await tables.dump() == before


@pytest.mark.slow
@everywhere
async def test_images_that_are_passed_on_are_in_the_order_of_their_changes(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The change of `second` lies between that of `first` itself and the one that `third` has left to it."""
    steps = {
        "first": ParallelStep(["update @counter set n = n + 7"]),
        "second": ParallelStep(["update @counter set n = n + 1 where id = 2"]),
        "third": ParallelStep(
            [shared_basket(kind, 1), "insert into @line values (0, 1)", "update @counter set n = 1 - n where id = 2"]
        ),
        "fourth": ParallelStep(["update @place set pos = 5 where id = 2"]),
        "fifth": ParallelStep([shared_basket(kind, 1), "insert into @line values (1, 1)"]),
    }
    async with _tables(kind, request, tmp_path) as tables:
        await _restored(tables, steps, ["third", "second", "first", "fifth", "fourth"], "saga")


async def _all_restored(kind: str, seeds: range, request: pytest.FixtureRequest, folder: Path) -> None:
    undone = 0
    async with _tables(kind, request, folder) as tables:
        for seed in seeds:
            steps = generate(kind, seed)
            order = list(steps)
            Random(-seed).shuffle(order)
            undone += await _restored(tables, steps, order, f"saga{seed}")
    assert undone > len(seeds) * 2  # fewer would mean that the database has refused the steps themselves


@pytest.mark.sampled("kind")
@everywhere
async def test_generated_parallel_steps_are_undone_in_any_order(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    await _all_restored(kind, SEEDS, request, tmp_path)


@everywhere
async def test_a_change_of_others_between_two_steps_is_kept(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    steps = {"a": ParallelStep([ADD.format(10)]), "b": ParallelStep([ADD.format(1)])}
    async with _tables(kind, request, tmp_path) as tables:
        assert (await tables.do(steps["a"].run, "a")).kind == "done"
        await tables.sql("update @counter set n = 50 where id = 1")
        assert (await tables.do(steps["b"].run, "b")).kind == "done"
        assert "has been changed since" in str((await undo(tables, "a", steps["a"])).park_reason)
        assert (await undo(tables, "b", steps["b"])).kind == "done"
        assert [tuple(row) for row in await tables.sql(COUNTER)] == [(50,)]


@everywhere
async def test_an_undo_by_a_statement_names_those_to_which_it_leaves_inherited_rows(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    steps = cases(kind)["confirmed"]
    async with _tables(kind, request, tmp_path) as tables:
        before = await tables.dump()
        await play(tables, steps, "saga")
        assert (await undo(tables, "a", steps["a"])).result == {"restored": 0, "left_to": ["b"]}
        assert (await undo(tables, "b", steps["b"])).result == {"restored": 0, "left_to": ["c"]}
        assert "left_to" not in (await undo(tables, "c", steps["c"])).result
        await row_locks.release(tables.database.engine, tables.entry(saga="saga").saga_id)
        assert await tables.dump() == before


@everywhere
async def test_a_change_of_others_before_a_confirmed_step_is_undone_is_kept(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    steps = {"a": ParallelStep([ADD.format(10)]), "b": ParallelStep([ADD.format(1)], confirmed=[ADD.format(-5)])}
    async with _tables(kind, request, tmp_path) as tables:
        assert await play(tables, steps, "saga") == ["a", "b"]
        await tables.sql("update @counter set n = 50 where id = 1")
        assert (await undo(tables, "b", steps["b"])).kind == "done"
        assert "has been changed since" in str((await undo(tables, "a", steps["a"])).park_reason)
        assert [tuple(row) for row in await tables.sql(COUNTER)] == [(45,)]


@everywhere
async def test_only_steps_that_are_certain_to_be_undone_restore_rows_for_others(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    toggle = ParallelStep(["update @counter set n = 1 - n where id = 1"])
    async with _tables(kind, request, tmp_path) as tables:
        for name in ("f#1", "f#0", "stays", "stays-too"):
            assert (await tables.do(toggle.run, name)).kind == "done"
        assert (await undo(tables, "f#1", toggle, undone_steps=("f",))).kind == "done"
        # The row is as before both, but steps that stay have made it so: their undo would change it again.
        parked = await undo(tables, "f#0", toggle, undone_steps=("f",))
        writers = ", ".join(f"step {name} of the saga saga-{tables.id}" for name in ("stays", "stays-too"))
        assert f"has been changed since by {writers} (" in str(parked.park_reason)
        for name in ("stays-too", "stays", "f#0"):
            assert (await undo(tables, name, toggle)).kind == "done"
        assert [tuple(row) for row in await tables.sql(COUNTER)] == [(0,)]


@everywhere
async def test_an_undo_that_restores_no_rows_keeps_other_steps_from_its_rows(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    elsewhere, replaced = undo_scopes.undone_elsewhere("", "b"), undo_scopes.of_nested("", "n", replaced=True)
    async with _tables(kind, request, tmp_path) as tables:
        assert (await tables.do([ADD.format(1)], "b", "saga", elsewhere)).kind == "done"
        assert (await tables.do([ADD.format(1)], "a")).kind == "done"
        for name, saga, scope, why in (
            ("c", "saga", undo_scopes.undone_elsewhere("", "c"), "uses another connection"),
            ("d", "saga/n", replaced, "replaces the undo"),
        ):
            refused = await tables.do([ADD.format(1)], name, saga, scope)
            assert (refused.kind, refused.retryable) == ("failed", False)
            assert f"has been changed by a of the saga saga-{tables.id}, and" in str(refused.failure)
            assert why in str(refused.failure)
        assert [tuple(row) for row in await tables.sql(COUNTER)] == [(2,)]
