"""A bulk workflow whose history grows long lets its sagas go on alone, also where they only wait."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from saga_workers.client import Client
from saga_workers.runtime.databases import set_up_database
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer
from tests.integration.bulk.conftest import Bank, write_project
from tests.replay.scenario import EARLY

RESTLESS = """
saga: restless
id: "${{ input.id }}"
input: {type: object, properties: {id: {type: string}}}
steps:
  - {id: first, uses: bank.note, with: {text: first}, compensate: bank.forget}
  - {id: rest, for_each: "${{ [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12] }}", uses: wait, with: {for: 20ms}}
"""


@pytest.mark.slow
async def test_sagas_that_wait_again_and_again_leave(postgres_server: DatabaseServer, tmp_path: Path) -> None:
    server = TemporalServer(tmp_path / "temporal", extra=[EARLY])
    await asyncio.to_thread(server.start)
    try:
        url = new_database(postgres_server)
        folder = Path(write_project(tmp_path / "project", server.address, url).settings.root)
        (folder / "restless.saga.yaml").write_text(RESTLESS)
        project = Project(load_settings(config=str(folder / "saga.toml")))
        await set_up_database(project.settings.sql_connection("bank"))
        async with running_worker(project) as client:
            result = await Bank(client, project, url).start("restless", [{"id": f"r-{n}"} for n in range(3)])
            assert result["counts"] == {"DETACHED": 3}
            assert [await _final_state(client, f"r-{n}") for n in range(3)] == ["COMPLETED"] * 3
            await client.close()
    finally:
        server.kill()


async def _final_state(client: Client, id: str) -> str:
    await client.temporal.get_workflow_handle(id).result()
    return (await client.view(id)).state
