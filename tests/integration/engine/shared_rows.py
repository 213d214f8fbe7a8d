"""Sagas whose automatic undos share rows: a project with one database, a worker, and the decisions of an operator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.connections import open_engine
from saga_workers.client import Client
from saga_workers.runtime.databases import set_up_database
from sagas.project import Project
from sagas.protocol.saga_view import ResidueView, SagaView
from sagas.settings.connections import async_url
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.new_databases import new_url
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until

OPERATOR = {"who": "the test", "reason": "the test"}


def everywhere(test: Callable[..., Any]) -> Callable[..., Any]:
    """On each kind of database in `make test-long`; in `make test` the tests of a module take turns with them.

    Where the databases differ, tests/integration/guard has each case on all of them.
    """
    on_each = pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite"])
    return pytest.mark.sampled(turns="kind")(on_each(test))


on_postgresql = pytest.mark.parametrize("kind", ["postgresql"])

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
COUNTERS = {
    "add": ADD,
    "in-order": NESTED.format(name="in-order", second="first"),
    "parallel": NESTED.format(name="parallel", second="pause"),
}
"""Two nested sagas of one root change one row, `first` before `second`."""


@dataclass(frozen=True)
class Shop:
    """The worker's client, and its database."""

    client: Client
    engine: AsyncEngine

    async def execute(self, *statements: str) -> None:
        async with self.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            for statement in statements:
                await connection.exec_driver_sql(statement)

    async def read(self, query: str) -> list[tuple[Any, ...]]:
        async with self.engine.connect() as connection:
            return [tuple(row) for row in await connection.exec_driver_sql(query)]

    async def restore(self, residue: Sequence[ResidueView]) -> None:
        """Run the commands of a residue that are SQL."""
        commands = [item.command or "" for item in residue if item.system == "shop"]
        await self.execute(*(line for command in commands for line in command.splitlines()))

    async def reached(self, id: str, condition: Callable[[SagaView], bool]) -> SagaView:
        async def view_if() -> SagaView | None:
            view = await self.client.view(id)
            return view if condition(view) else None

        return await until(view_if)

    async def ended(self, id: str) -> SagaView:
        return await self.reached(id, lambda view: view.ended_at is not None)

    async def ended_or_parked(self, id: str) -> SagaView:
        return await self.reached(id, lambda view: view.ended_at is not None or bool(view.parked))

    async def step_reached(self, id: str, step: str, state: str) -> SagaView:
        return await self.reached(id, lambda view: any(s.id == step and s.state == state for s in view.steps))

    async def resolve(self, id: str, step: str, decision: str, **more: Any) -> None:
        await self.client.resolve(id, {"step": step, "decision": decision, **OPERATOR, **more})


@asynccontextmanager
async def shop(
    kind: str,
    folder: Path,
    temporal: TemporalServer,
    request: pytest.FixtureRequest,
    sagas: Mapping[str, str],
    *statements: str,
) -> AsyncIterator[Shop]:
    """A new database with the effects of ``statements``, and a worker for these sagas."""
    url = await new_url(kind, request, folder)
    project: Project = make_project(
        folder / "project", dict(sagas), [], address=temporal.address, connections={"shop": url},
    )  # fmt: skip
    await set_up_database(project.settings.sql_connections()[0])
    engine = open_engine("shop", async_url(url, folder, setting="shop"), 1)
    async with running_worker(project) as client:
        result = Shop(client, engine)
        await result.execute(*statements)
        yield result
        await client.close()
    await engine.dispose()


@dataclass(frozen=True)
class CancelledSaga:
    """A cancelled saga of ``COUNTERS``: a person has changed the row, so the undo of ``second`` is parked."""

    shop: Shop
    id: str

    @property
    def first(self) -> str:
        return f"{self.id}/first"

    @property
    def second(self) -> str:
        return f"{self.id}/second"

    async def value(self) -> int:
        return (await self.shop.read("select n from counter"))[0][0]

    async def skip(self) -> SagaView:
        await self.shop.resolve(self.second, "counted", "skip")
        return await self.shop.ended(self.second)


@asynccontextmanager
async def cancelled_saga(
    saga: str, kind: str, folder: Path, temporal: TemporalServer, request: pytest.FixtureRequest
) -> AsyncIterator[CancelledSaga]:
    table = ("create table counter (id int primary key, n int not null)", "insert into counter values (1, 0)")
    async with shop(kind, folder, temporal, request, COUNTERS, *table) as place:
        run = await place.client.start(saga, {})
        cancelled = CancelledSaga(place, run.id)
        await place.step_reached(run.id, "open", "RUNNING")
        assert await cancelled.value() == 2
        await place.execute("update counter set n = 40")
        await place.client.cancel(run.id, **OPERATOR)
        await place.reached(cancelled.second, lambda view: bool(view.parked))
        yield cancelled
