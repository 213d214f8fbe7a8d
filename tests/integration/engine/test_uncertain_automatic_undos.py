"""An automatic undo leaves a row to the undo of another step only if that one is certain, and nothing gets lost then.

`earlier` changes a row before another step of the same root saga does. Then the saga is rolled back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.connections import open_engine
from saga_workers.client import Client
from saga_workers.runtime.databases import set_up_database
from sagas.protocol.saga_view import SagaView
from sagas.settings.connections import async_url
from sagas.settings.project import Project
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.new_databases import new_url
from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import until

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
PARKS = """uses: sql, with: {connection: shop, run: "insert into seen values (1)"},
     compensate: {uses: sql, with: {connection: shop, run: "delete from seen where v = 2", expect_rows: 1}}"""
MOVED = f"""saga: moved
steps:
  - {{id: earlier, uses: sql, compensate: auto, needs: [],
     with: {{connection: shop, run: "update place set id = 2 where id = 1"}}}}
  - {{id: pause, uses: wait, with: {{for: 1s}}, needs: []}}
  - {{id: later, uses: sql, compensate: auto, needs: [pause],
     with: {{connection: shop, run: "update place set v = v + 1 where id = 2"}}}}
  - {{id: seen, needs: [later], {PARKS}}}
  - {{id: no, uses: require, needs: [earlier, seen], with: {{that: "false", message: "no"}}}}
"""
SHARED = f"""saga: shared
steps:
  - {{id: earlier, uses: sql, compensate: auto, needs: [], with: {ADD.format(n=10)}}}
  - {{id: pause, uses: wait, with: {{for: 1s}}, needs: []}}
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
    "shared": SHARED,
}
OPERATOR = {"who": "the test", "reason": "the test"}
everywhere = pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite"])


@dataclass(frozen=True)
class Shop:
    client: Client
    engine: AsyncEngine

    async def execute(self, *statements: str) -> None:
        async with self.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            for statement in statements:
                await connection.exec_driver_sql(statement)

    async def places(self) -> list[tuple[Any, ...]]:
        async with self.engine.connect() as connection:
            return [tuple(row) for row in await connection.exec_driver_sql("select id, code, v from place")]

    async def ended_or_parked(self, id: str) -> SagaView:
        async def view_if() -> SagaView | None:
            view = await self.client.view(id)
            return view if view.ended_at is not None or view.parked else None

        return await until(view_if)

    async def reached(self, id: str, step: str, state: str) -> SagaView:
        async def view_if() -> SagaView | None:
            view = await self.client.view(id)
            return view if any(one.id == step and one.state == state for one in view.steps) else None

        return await until(view_if)

    async def resolve(self, id: str, step: str, decision: str, **more: Any) -> None:
        await self.client.resolve(id, {"step": step, "decision": decision, **OPERATOR, **more})


@asynccontextmanager
async def shop(
    kind: str,
    folder: Path,
    temporal: TemporalServer,
    request: pytest.FixtureRequest,
    more: dict[str, str] | None = None,
) -> AsyncIterator[Shop]:
    url = await new_url(kind, request, folder)
    sagas = {**SAGAS, **(more or {})}
    project: Project = make_project(
        folder / "project", sagas, [], address=temporal.address, connections={"shop": url},
    )  # fmt: skip
    await set_up_database(project.settings.connection("shop"))
    engine = open_engine("shop", async_url(url, folder, setting="shop"), 1)
    async with running_worker(project) as client:
        result = Shop(client, engine)
        await result.execute(
            "create table place (id int primary key, code varchar(9) unique, v int not null)",
            "insert into place values (1, 'X', 0)",
            "create table seen (v int primary key)",
        )
        yield result
        await client.close()
    await engine.dispose()


@everywhere
@pytest.mark.parametrize("saga", ["replaced", "replaced-nested"])
async def test_a_compensate_of_the_parent_restores_no_row_of_another_step(
    saga: str, kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with shop(kind, tmp_path, temporal, request) as place:
        run = await place.client.start(saga, {})
        view = await place.ended_or_parked(run.id)
        assert (view.state, await place.places()) == ("COMPENSATED", [(1, "X", 0)])


@pytest.mark.parametrize("kind", ["postgresql"])
async def test_no_row_is_left_to_a_step_that_stays(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with shop(kind, tmp_path, temporal, request) as place:
        run = await place.client.start("stays", {})
        parked = await place.ended_or_parked(run.id)
        assert "has been changed since by step later of the saga" in parked.parked[0].why
        assert await place.places() == [(1, "X", 11)]


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
async def test_rows_that_a_later_change_keeps_from_being_restored_are_left_to_it(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with shop(kind, tmp_path, temporal, request, {"moved": MOVED}) as place:
        run = await place.client.start("moved", {})
        await place.reached(run.id, "earlier", "COMPENSATED")
        assert await place.places() == [(2, "X", 1)]
        await place.reached(run.id, "seen", "PARKED")
        await place.resolve(run.id, "seen", "done", evidence="the test")
        view = await place.ended_or_parked(run.id)
        assert (view.state, await place.places()) == ("COMPENSATED", [(1, "X", 0)])


@everywhere
async def test_done_is_refused_once_with_the_rows_that_another_undo_has_added(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with shop(kind, tmp_path, temporal, request) as place:
        run = await place.client.start("shared", {})
        await place.reached(run.id, "open", "RUNNING")
        await place.execute("update place set v = 40")
        await place.client.cancel(run.id, **OPERATOR)
        await place.reached(run.id, "later", "PARKED")
        view = await place.reached(run.id, "seen", "PARKED")
        (stale,) = (parked for parked in view.parked if parked.step == "later")
        await place.resolve(run.id, "seen", "done", evidence="the test")
        await place.reached(run.id, "earlier", "COMPENSATED")
        await place.execute(*(stale.sql or ()))
        assert await place.places() == [(1, "X", 10)]
        await place.resolve(run.id, "later", "done", evidence="the SQL of saga show")

        async def refused() -> SagaView | None:
            view = await place.client.view(run.id)
            return view if view.parked and "another undo" in view.parked[0].why else None

        (parked,) = (await until(refused)).parked
        assert parked.rows[0].before == {"v": "0"}
        await place.execute(*(parked.sql or ()))
        await place.resolve(run.id, "later", "done", evidence="the SQL of saga show")
        view = await place.ended_or_parked(run.id)
        assert (view.state, await place.places()) == ("COMPENSATED", [(1, "X", 0)])
