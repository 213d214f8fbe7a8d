"""A step changes a row that `earlier`, another step of the same root saga, has changed only if both undos restore it.

An automatic undo leaves a row to the undo of another step only if that one is certain, and nothing gets lost then.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sagas.protocol.saga_view import SagaView
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.engine.shared_rows import OPERATOR, everywhere, on_postgresql, shop

ADD = "{{connection: shop, run: 'update place set v = v + {n} where id = 1'}}"
CHILD = f"""saga: child
steps:
  - {{id: added, uses: sql, compensate: auto, with: {ADD.format(n=1)}}}
"""
FIRST = f"""saga: first
steps:
  - {{id: added, uses: sql, compensate: auto, with: {ADD.format(n=10)}}}
"""
FAILS_LATER = f"""saga: fails-later
steps:
  - {{id: added, uses: sql, compensate: auto, with: {ADD.format(n=10)}}}
  - {{id: pause, uses: wait, with: {{for: 3s}}}}
  - {{id: no, uses: require, with: {{that: "false", message: "no"}}}}
"""
FAILS = """  - {id: no, uses: require, with: {that: "false", message: "no"}}
"""
MINUS = "compensate: {uses: sql, with: {connection: shop, run: 'update place set v = v - 1 where id = 1'}}"
REPLACED = f"""saga: replaced
steps:
  - {{id: earlier, uses: sql, compensate: auto, with: {ADD.format(n=10)}}}
  - {{id: later, uses: saga, with: {{name: child}}, {MINUS}}}
{FAILS}"""
REPLACED_NESTED = f"""saga: replaced-nested
steps:
  - {{id: earlier, uses: saga, with: {{name: first}}}}
  - {{id: later, uses: saga, with: {{name: child}}, {MINUS}}}
{FAILS}"""
STAYS = f"""saga: stays
steps:
  - {{id: earlier, uses: saga, with: {{name: fails-later}}, on_failure: continue, needs: []}}
  - {{id: pause, uses: wait, with: {{for: 1s}}, needs: []}}
  - {{id: later, uses: sql, compensate: auto, needs: [pause], with: {ADD.format(n=1)}}}
"""
AT_ONCE = f"""saga: at-once
steps:
  - {{id: earlier, uses: saga, with: {{name: child}}, on_failure: continue, needs: []}}
  - {{id: pause, uses: wait, with: {{for: 1s}}, needs: []}}
  - {{id: later, uses: sql, compensate: auto, needs: [pause], with: {ADD.format(n=10)}}}
  - {{id: no, uses: require, needs: [earlier, later], with: {{that: "false", message: "no"}}}}
"""
AGAIN = f"""saga: again
steps:
  - {{id: stays, uses: sql, compensate: auto, savepoint: {{attempts: 2}}, with: {ADD.format(n=100)}}}
  - {{id: earlier, uses: saga, with: {{name: child}}, needs: [stays]}}
  - {{id: pause, uses: wait, with: {{for: 1s}}, needs: [stays]}}
  - {{id: later, uses: sql, compensate: auto, needs: [pause], with: {ADD.format(n=10)}}}
  - {{id: no, uses: require, needs: [earlier, later], with: {{that: "false", message: "no"}}}}
"""
PARKS = """uses: sql, with: {connection: shop, run: "insert into seen values (1)"},
     compensate: {uses: sql, with: {connection: shop, run: "delete from seen where v = 2", expect_rows: 1}}"""
MOVED = f"""saga: moved
steps:
  - {{id: earlier, uses: sql, compensate: auto, needs: [],
     with: {{connection: shop, run: "update place set id = 2 where id = 1"}}}}
  - {{id: pause, uses: wait, with: {{signal: go}}, needs: []}}
  - {{id: later, uses: sql, compensate: auto, needs: [pause],
     with: {{connection: shop, run: "update place set v = v + 1 where id = 2"}}}}
  - {{id: seen, needs: [later], {PARKS}}}
  - {{id: no, uses: require, needs: [earlier, seen], with: {{that: "false", message: "no"}}}}
"""
SHARED = f"""saga: shared
steps:
  - {{id: earlier, uses: sql, compensate: auto, needs: [], with: {ADD.format(n=10)}}}
  - {{id: pause, uses: wait, with: {{signal: go}}, needs: []}}
  - {{id: later, uses: sql, compensate: auto, needs: [pause], with: {ADD.format(n=1)}}}
  - {{id: seen, needs: [earlier], {PARKS}}}
  - {{id: open, uses: wait, with: {{for: 1h}}, needs: [seen, later]}}
"""
SAGAS = {
    "child": CHILD,
    "first": FIRST,
    "fails-later": FAILS_LATER,
    "replaced": REPLACED,
    "replaced-nested": REPLACED_NESTED,
    "stays": STAYS,
    "at-once": AT_ONCE,
    "again": AGAIN,
    "shared": SHARED,
}
TABLES = (
    "create table place (id int primary key, code varchar(9) unique, v int not null)",
    "insert into place values (1, 'X', 0)",
    "create table seen (v int primary key)",
)
PLACES = "select id, code, v from place"


@pytest.mark.sampled(keep=1)
@everywhere
@pytest.mark.parametrize("saga", ["replaced", "replaced-nested"])
async def test_a_nested_saga_with_a_compensate_changes_no_row_of_another_step(
    saga: str, kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with shop(kind, tmp_path, temporal, request, SAGAS, *TABLES) as place:
        run = await place.client.start(saga, {})
        view = await place.ended_or_parked(run.id)
        assert (view.state, await place.read(PLACES)) == ("COMPENSATED", [(1, "X", 0)])
        refusal = "a `compensate` of a nested saga replaces the undo that restores its rows"
        assert view.reason is not None
        assert refusal in str(view.reason.message)


@on_postgresql
async def test_a_step_that_stays_waits_for_a_nested_saga_that_may_be_undone_alone(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with shop(kind, tmp_path, temporal, request, SAGAS, *TABLES) as place:
        run = await place.client.start("stays", {})
        view = await place.ended_or_parked(run.id)
        assert (view.state, await place.read(PLACES)) == ("COMPLETED", [(1, "X", 1)])


@pytest.mark.sampled(keep=1)
@everywhere
@pytest.mark.parametrize("saga", ["at-once", "again"])
async def test_the_rows_of_a_nested_saga_that_has_ended_are_restored_with_those_of_its_parent(
    saga: str, kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with shop(kind, tmp_path, temporal, request, SAGAS, *TABLES) as place:
        run = await place.client.start(saga, {})
        view = await place.ended_or_parked(run.id)
        assert (view.state, await place.read(PLACES)) == ("COMPENSATED", [(1, "X", 0)])


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
async def test_rows_that_a_later_change_keeps_from_being_restored_are_left_to_it(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with shop(kind, tmp_path, temporal, request, {"moved": MOVED}, *TABLES) as place:
        run = await place.client.start("moved", {})
        await place.step_reached(run.id, "earlier", "DONE")
        await place.client.signal(run.id, "go")
        await place.step_reached(run.id, "earlier", "COMPENSATED")
        assert await place.read(PLACES) == [(2, "X", 1)]
        await place.step_reached(run.id, "seen", "PARKED")
        await place.resolve(run.id, "seen", "done", evidence="the test")
        view = await place.ended_or_parked(run.id)
        assert (view.state, await place.read(PLACES)) == ("COMPENSATED", [(1, "X", 0)])


@everywhere
async def test_done_is_refused_once_with_the_rows_that_another_undo_has_added(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with shop(kind, tmp_path, temporal, request, SAGAS, *TABLES) as place:
        run = await place.client.start("shared", {})
        await place.step_reached(run.id, "earlier", "DONE")
        await place.client.signal(run.id, "go")
        await place.step_reached(run.id, "open", "RUNNING")
        await place.execute("update place set v = 40")
        await place.client.cancel(run.id, **OPERATOR)
        await place.step_reached(run.id, "later", "PARKED")
        view = await place.step_reached(run.id, "seen", "PARKED")
        (stale,) = (parked for parked in view.parked if parked.step == "later")
        await place.resolve(run.id, "seen", "done", evidence="the test")
        await place.step_reached(run.id, "earlier", "COMPENSATED")
        await place.execute(*(stale.sql or ()))
        assert await place.read(PLACES) == [(1, "X", 10)]
        await place.resolve(run.id, "later", "done", evidence="the SQL of saga show")

        async def refused() -> SagaView | None:
            view = await place.client.view(run.id)
            return view if view.parked and "another undo" in view.parked[0].why else None

        (parked,) = (await until(refused)).parked
        assert parked.rows[0].before == {"v": "0"}
        await place.execute(*(parked.sql or ()))
        await place.resolve(run.id, "later", "done", evidence="the SQL of saga show")
        view = await place.ended_or_parked(run.id)
        assert (view.state, await place.read(PLACES)) == ("COMPENSATED", [(1, "X", 0)])
