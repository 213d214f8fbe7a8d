"""A bulk workflow whose history grows long lets its sagas go on alone, also where they only wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from temporalio.client import WorkflowFailureError

from saga_workers.client import Client
from saga_workers.runtime.databases import set_up_database
from saga_workers.start.start_requests import BulkRow
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.bulk.conftest import Bank, write_project
from tests.replay.scenario import EARLY

RESTLESS = """
saga: restless
id: "${{ input.id }}"
input: {type: object, properties: {id: {type: string}, rest: {type: string, default: 20ms}}}
steps:
  - {id: first, uses: bank.note, with: {text: first}, compensate: bank.forget}
  - {id: rest, for_each: "${{ [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12] }}", uses: wait, with: {for: "${{ input.rest }}"}}
"""


pytestmark = pytest.mark.slow


@pytest.fixture
async def restless(postgres_server: DatabaseServer, tmp_path: Path) -> AsyncIterator[tuple[Project, str]]:
    """A project with the saga, on a server that suggests a new run early; and the address of its database."""
    server = TemporalServer(tmp_path / "temporal", extra=[EARLY])
    await asyncio.to_thread(server.start)
    try:
        url = new_database(postgres_server)
        folder = Path(write_project(tmp_path / "project", server.address, url).settings.root)
        (folder / "restless.saga.yaml").write_text(RESTLESS)
        project = Project(load_settings(config=str(folder / "saga.toml")))
        await set_up_database(project.settings.sql_connection("bank"))
        yield project, url
    finally:
        server.kill()


async def test_sagas_that_wait_again_and_again_leave(restless: tuple[Project, str]) -> None:
    project, url = restless
    async with running_worker(project) as client:
        result = await Bank(client, project, url).start("restless", [{"id": f"r-{n}"} for n in range(3)])
        assert result["counts"] == {"DETACHED": 3}
        assert [await _final_state(client, f"r-{n}") for n in range(3)] == ["COMPLETED"] * 3
        await client.close()


@pytest.mark.parametrize("cancelled", ["all", "one"])
async def test_a_cancel_in_the_task_in_which_they_leave(restless: tuple[Project, str], cancelled: str) -> None:
    """The worker is away while signals fill the history, and the cancel comes last: all are in one task."""
    project, url = restless
    ids = [f"r-{n}" for n in range(3)]
    async with running_worker(project) as client:
        bank = Bank(client, project, url)
        starter = await client.starter("restless")
        run = await starter.start_bulk([BulkRow(id, starter.make_request({"id": id, "rest": "3s"})) for id in ids])
        await until(lambda: len(bank.query("select id from note")) == 3)
    for number in range(45):
        await run.signal("other", number)
    cancelling: asyncio.Task[object] | None = None
    if cancelled == "all":
        await run.cancel()
    else:
        cancelling = asyncio.create_task(client.cancel("r-1", who="mia"))
        await asyncio.sleep(1)
    async with running_worker(project) as client:
        result = await run.result()
        if cancelling is not None:
            await cancelling
        assert result["counts"] == {"all": {"COMPENSATED": 3}, "one": {"DETACHED": 3}}[cancelled]
        expected = {id: "COMPENSATED" if cancelled == "all" or id == "r-1" else "COMPLETED" for id in ids}
        await until(lambda: bank.states() == expected)
        kept = {id for (id,) in bank.query("select id from note")}
        assert kept == {id for id, state in expected.items() if state == "COMPLETED"}
        await client.close()


async def _final_state(client: Client, id: str) -> str:
    with suppress(WorkflowFailureError):
        await client.temporal.get_workflow_handle(id).result()
    return (await client.view(id)).state
