"""A skipped automatic undo leaves its rows as they are: no other undo relies on it, and its residue has all changes.

Two nested sagas of one root change one row, `first` before `second`. Then a person changes it, and the root is
cancelled, so the undo of `second` parks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from saga_workers.client import Client
from saga_workers.runtime.databases import set_up_database
from sagas.protocol.saga_view import ResidueView, SagaView
from sagas.settings.project import Project
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.new_databases import new_database
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


@dataclass(frozen=True)
class CancelledSaga:
    """``second`` is the id of the nested saga that is parked."""

    client: Client
    id: str
    second: str
    shop: psycopg.Connection


@asynccontextmanager
async def cancelled_saga(
    saga: str, folder: Path, temporal: TemporalServer, server: DatabaseServer
) -> AsyncIterator[CancelledSaga]:
    url = new_database(server)
    project: Project = make_project(folder, SAGAS, [], address=temporal.address, connections={"shop": url})
    await set_up_database(project.settings.connection("shop"))
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("create table counter (id int primary key, n int not null)")
        connection.execute("insert into counter values (1, 0)")
        async with running_worker(project) as client:
            run = await client.start(saga, {})
            await reached(
                client, run.id, lambda view: any(step.id == "open" and step.state == "RUNNING" for step in view.steps)
            )
            assert value(connection) == 2
            connection.execute("update counter set n = 40")
            await client.cancel(run.id, reason="the test", who="the test")
            second = f"{run.id}/second"
            await reached(client, second, lambda view: bool(view.parked))
            yield CancelledSaga(client, run.id, second, connection)
            await client.close()


def value(connection: psycopg.Connection) -> int:
    row = connection.execute("select n from counter").fetchone()
    assert row is not None
    return row[0]


async def reached(client: Client, id: str, condition: Callable[[SagaView], bool]) -> SagaView:
    async def view_if() -> SagaView | None:
        view = await client.view(id)
        return view if condition(view) else None

    return await until(view_if)


async def skip(client: Client, id: str) -> SagaView:
    await client.resolve(id, {"step": "counted", "decision": "skip", **OPERATOR})
    return await reached(client, id, lambda view: view.ended_at is not None)


def restore(connection: psycopg.Connection, residue: Sequence[ResidueView]) -> None:
    for item in residue:
        assert item.command is not None
        connection.execute(item.command.encode())


async def test_a_row_that_another_undo_has_left_to_it_is_in_its_residue(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    async with cancelled_saga("parallel", tmp_path / "project", temporal, postgres_server) as saga:
        await reached(saga.client, f"{saga.id}/first", lambda view: view.ended_at is not None)
        assert value(saga.shop) == 40
        view = await skip(saga.client, saga.second)
        assert (view.state, len(view.residue)) == ("RESIDUE", 1)
        restore(saga.shop, view.residue)
        assert value(saga.shop) == 0


async def test_no_later_undo_leaves_a_row_to_a_skipped_one(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    async with cancelled_saga("in-order", tmp_path / "project", temporal, postgres_server) as saga:
        view = await skip(saga.client, saga.second)
        parked = await reached(saga.client, f"{saga.id}/first", lambda view: bool(view.parked))
        assert "has been changed since" in parked.parked[0].why
        restore(saga.shop, view.residue)
        assert value(saga.shop) == 1
        await saga.client.resolve(f"{saga.id}/first", {"step": "counted", "decision": "retry", **OPERATOR})
        view = await reached(saga.client, f"{saga.id}/first", lambda view: view.ended_at is not None)
        assert (view.state, view.residue, value(saga.shop)) == ("COMPENSATED", (), 0)


async def test_an_unreachable_database_does_not_keep_a_person_from_skipping(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    async with cancelled_saga("in-order", tmp_path / "project", temporal, postgres_server) as saga:
        database = saga.shop.info.dbname
        admin = saga.shop.info.dsn.replace(f"dbname={database}", "dbname=postgres")
        with psycopg.connect(admin, password=saga.shop.info.password, autocommit=True) as connection:
            connection.execute(f"alter database {database} allow_connections false".encode())
            connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [database])
            view = await skip(saga.client, saga.second)
            assert view.state == "RESIDUE"
            connection.execute(f"alter database {database} allow_connections true".encode())
            (item,) = view.residue
            with psycopg.connect(saga.shop.info.dsn, password=saga.shop.info.password) as shop:
                rows = shop.execute((item.command or "").encode()).fetchall()
            assert [(row[0], row[2], row[3]) for row in rows] == [
                ('"public"."counter"', '{"id":"1","n":"1"}', '{"id":"1","n":"2"}')
            ]


async def test_an_undo_that_has_happened_is_not_skipped(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    async with cancelled_saga("in-order", tmp_path / "project", temporal, postgres_server) as saga:
        saga.shop.execute(
            "insert into saga_guard (saga_id, step, generation, op, reason, result, created_at)"
            " values (%s, 'counted', 1, 'undo', 'undo', '{\"restored\":1}', 0)",
            [saga.second],
        )
        view = await skip(saga.client, saga.second)
        assert (view.state, view.residue) == ("COMPENSATED", ())
