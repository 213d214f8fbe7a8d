"""A skipped automatic undo leaves its rows as they are: no other undo relies on it, and its residue has all changes.

Two nested sagas of one root change one row, `first` before `second`. Then a person changes it, and the root is
cancelled, so the undo of `second` parks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.connections import open_engine
from saga_workers.client import Client
from saga_workers.runtime.databases import set_up_database
from sagas.protocol.saga_view import ResidueView, SagaView
from sagas.settings.connections import async_url
from sagas.settings.project import Project
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.new_databases import new_url
from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import until

ADD = """saga: add
steps:
  - {id: counted, uses: sql, compensate: auto,
     with: {connection: shop, run: "update counter set n = n + 1 where id = 1"}}
"""
NESTED = """saga: {name}
steps:
  - {{id: first, uses: saga, with: {{name: add}}, needs: []}}
  - {{id: pause, uses: wait, with: {{for: 1500ms}}, needs: []}}
  - {{id: second, uses: saga, with: {{name: add}}, needs: [{second}]}}
  - {{id: open, uses: wait, with: {{for: 1h}}, needs: [first, second]}}
"""
SAGAS = {
    "add": ADD,
    "in-order": NESTED.format(name="in-order", second="first"),
    "parallel": NESTED.format(name="parallel", second="pause"),
}


OPERATOR = {"who": "the test", "reason": "the test"}
everywhere = pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite"])
on_postgresql = pytest.mark.parametrize("kind", ["postgresql"])


@dataclass(frozen=True)
class CancelledSaga:
    """``second`` is the id of the nested saga that is parked."""

    client: Client
    id: str
    second: str
    shop: AsyncEngine
    url: str

    async def execute(self, *statements: str) -> None:
        async with self.shop.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            for statement in statements:
                await connection.exec_driver_sql(statement)

    async def read(self, query: str) -> list[tuple[Any, ...]]:
        async with self.shop.connect() as connection:
            return [tuple(row) for row in await connection.exec_driver_sql(query)]

    async def value(self) -> int:
        return (await self.read("select n from counter"))[0][0]

    async def restore(self, residue: Sequence[ResidueView]) -> None:
        await self.execute(*(item.command or "" for item in residue))

    async def skip(self) -> SagaView:
        await self.client.resolve(self.second, {"step": "counted", "decision": "skip", **OPERATOR})
        return await self.reached(self.second, lambda view: view.ended_at is not None)

    async def reached(self, id: str, condition: Callable[[SagaView], bool]) -> SagaView:
        async def view_if() -> SagaView | None:
            view = await self.client.view(id)
            return view if condition(view) else None

        return await until(view_if)


@asynccontextmanager
async def cancelled_saga(
    saga: str, kind: str, folder: Path, temporal: TemporalServer, request: pytest.FixtureRequest
) -> AsyncIterator[CancelledSaga]:
    url = await new_url(kind, request, folder)
    project: Project = make_project(
        folder / "project", SAGAS, [], address=temporal.address, connections={"shop": url},
    )  # fmt: skip
    await set_up_database(project.settings.connection("shop"))
    shop = open_engine("shop", async_url(url, folder, setting="shop"), 1)
    async with running_worker(project) as client:
        cancelled = CancelledSaga(client, "", "", shop, url)
        await cancelled.execute(
            "create table counter (id int primary key, n int not null)", "insert into counter values (1, 0)"
        )
        run = await client.start(saga, {})
        cancelled = CancelledSaga(client, run.id, f"{run.id}/second", shop, url)
        await cancelled.reached(run.id, lambda view: any(s.id == "open" and s.state == "RUNNING" for s in view.steps))
        assert await cancelled.value() == 2
        await cancelled.execute("update counter set n = 40")
        await client.cancel(run.id, **OPERATOR)
        await cancelled.reached(cancelled.second, lambda view: bool(view.parked))
        yield cancelled
        await client.close()
    await shop.dispose()


@everywhere
async def test_a_row_that_another_undo_has_left_to_it_is_in_its_residue(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with cancelled_saga("parallel", kind, tmp_path, temporal, request) as saga:
        await saga.reached(f"{saga.id}/first", lambda view: view.ended_at is not None)
        assert await saga.value() == 40
        view = await saga.skip()
        assert (view.state, len(view.residue)) == ("RESIDUE", 1)
        await saga.restore(view.residue)
        assert await saga.value() == 0


@everywhere
async def test_no_later_undo_leaves_a_row_to_a_skipped_one(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with cancelled_saga("in-order", kind, tmp_path, temporal, request) as saga:
        view, first = await saga.skip(), f"{saga.id}/first"
        parked = await saga.reached(first, lambda view: bool(view.parked))
        assert "has been changed since" in parked.parked[0].why
        await saga.restore(view.residue)
        assert await saga.value() == 1
        await saga.client.resolve(first, {"step": "counted", "decision": "retry", **OPERATOR})
        view = await saga.reached(first, lambda view: view.ended_at is not None)
        assert (view.state, view.residue, await saga.value()) == ("COMPENSATED", (), 0)


@on_postgresql
async def test_an_unreachable_database_does_not_keep_a_person_from_skipping(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with cancelled_saga("in-order", kind, tmp_path, temporal, request) as saga:
        database = saga.shop.url.database
        admin = saga.shop.url.set(drivername="postgresql", database="postgres")
        with psycopg.connect(admin.render_as_string(hide_password=False), autocommit=True) as connection:
            connection.execute(f"alter database {database} allow_connections false".encode())
            connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [database])
            view = await saga.skip()
            assert view.state == "RESIDUE"
            connection.execute(f"alter database {database} allow_connections true".encode())
        (item,) = view.residue
        await saga.shop.dispose()
        (row,) = await saga.read(item.command or "")
        assert (row[0], row[2], row[3]) == ('"public"."counter"', '{"id":"1","n":"1"}', '{"id":"1","n":"2"}')


@on_postgresql
async def test_an_undo_that_has_happened_is_not_skipped(
    kind: str, temporal: TemporalServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with cancelled_saga("in-order", kind, tmp_path, temporal, request) as saga:
        await saga.execute(
            "insert into saga_guard (saga_id, step, generation, op, reason, result, created_at)"
            f" values ('{saga.second}', 'counted', 1, 'undo', 'undo', '{{\"restored\":1}}', 0)"
        )
        view = await saga.skip()
        assert (view.state, view.residue) == ("COMPENSATED", ())
