"""A worker that was started before a connection was added to saga.toml beside one that has it, as in a rolling
deployment: what needs the connection waits for the other worker, and neither fails nor parks.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest_asyncio

from saga_workers.client import Client
from saga_workers.runtime.databases import set_up_database
from sagas.project import Project
from sagas.settings import SqlConnection
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.engine.environment import begin

SAGA = """
saga: moved
defaults: {connection: wh, retry: {max_attempts: 3, initial_interval: 100ms, max_interval: 200ms}}
steps:
  - id: a
    uses: sql
    with: {run: "insert into moves values ('a', :saga)", params: {saga: "${{ saga.id }}"}}
    compensate: {uses: sql, with: {run: "delete from moves where saga = :saga", params: {saga: "${{ saga.id }}"}}}
  - id: b
    uses: sql
    with: {run: "insert into moves values ('b', :saga)", params: {saga: "${{ saga.id }}"}}
    compensate: {uses: sql, with: {run: "delete from moves where saga = :saga", params: {saga: "${{ saga.id }}"}}}
  - id: c
    uses: sql
    with: {run: "insert into moves values ('c', :saga)", params: {saga: "${{ saga.id }}"}}
    pivot: true
"""


@pytest_asyncio.fixture
async def project(temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path) -> Project:
    url = new_database(postgres_server)
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("create table moves (step text, saga text)")
    folder = tmp_path / "project"
    ledger = SqlConnection(name="led", root=folder, url_setting=url, keeps_ledger=True)
    project = make_project(
        *(folder, {"moved": SAGA}, []),
        address=temporal.address,
        connections={"wh": url},
        options={"led": ledger},
        ledger="led",
    )
    for name in ("wh", "led"):
        await set_up_database(project.settings.sql_connection(name))
    return project


def without(project: Project, name: str) -> Project:
    """The project as a worker has read it before the connection was added."""
    earlier = Project(project.settings, project.actions)
    assert earlier.diagnostics is not None
    connections = {each: setting for each, setting in project.settings.connections.items() if each != name}
    earlier.settings = project.settings.model_copy(update={"connections": connections})
    return earlier


async def test_a_worker_beside_it_performs_them(project: Project) -> None:
    async with running_worker(without(project, "wh")) as client:
        ids = await _begin_and_wait(client, in_bulk=5)
        async with running_worker(project):
            ended = [(await finished(client, id))["state"] for id in ids]
    assert ended == ["COMPLETED"] * len(ids)


async def test_calls_wait_for_a_worker_that_has_it(project: Project) -> None:
    async with running_worker(without(project, "wh")) as client:
        ids = await _begin_and_wait(client, in_bulk=20)
    async with running_worker(project) as client:
        ended = [(await finished(client, id))["state"] for id in ids]
    assert ended == ["COMPLETED"] * len(ids)
    with psycopg.connect(project.settings.sql_connection("wh").url.replace("+psycopg", "")) as database:
        rows = database.execute("select saga, count(*), count(distinct step) from moves group by saga").fetchall()
    assert {row[0] for row in rows} == set(ids)
    assert {row[1:] for row in rows} == {(3, 3)}


async def _begin_and_wait(client: Client, in_bulk: int) -> list[str]:
    """The ids of three sagas, and of so many in bulk, that wait for a worker with the connection."""
    ids = [await begin(client, "moved") for _ in range(3)]
    ids += [handle.id for handle in await client.start_many("moved", [{} for _ in range(in_bulk)], bulk=True)]
    for id in (ids[0], ids[-1]):
        await until(lambda id=id: _waits(client, id))
    return ids


async def _waits(client: Client, id: str) -> bool:
    view = await client.show(id)
    assert view["state"] == "RUNNING"
    error = view["steps"][0]["error"]
    return error is not None and "this worker has no SQL connection 'wh', only led" in error["message"]
