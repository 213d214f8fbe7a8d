"""Attempts whose workers die count in bulk execution as they do for a single saga."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from saga_workers.client import Client
from saga_workers.start.start_requests import BulkRow
from saga_workers.temporal.temporal_client import connect
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.local_worker import finished
from tests.helpers.processes import WorkerProcess
from tests.helpers.waiting import LIMIT, until
from tests.integration.bulk.conftest import Bank
from tests.integration.bulk.test_killed_workers import held, outcome_of

pytestmark = pytest.mark.slow

FRAGILE = """
saga: fragile
id: "${{ input.id }}"
input: {type: object, properties: {id: {type: string}}}
steps:
  - {id: only, uses: bank.note, with: {text: ok}, compensate: bank.forget, timeout: 20s,
     retry: {max_attempts: ATTEMPTS, initial_interval: 100ms}}
"""


@pytest.mark.parametrize(
    "attempts",
    [
        3,
        # With at most two attempts the end of a worker is noticed when the timeout of the step is over.
        pytest.param(1, marks=pytest.mark.slow),
    ],
)
async def test_all_attempts_of_lost_workers_count(
    bank_project: tuple[Project, str], tmp_path: Path, attempts: int
) -> None:
    """Each worker dies in the middle of a chunk of two sagas and of an attempt of a single one."""
    project, url = bank_project
    folder = tmp_path / "project"
    definition = FRAGILE.replace("ATTEMPTS", str(attempts))
    await asyncio.to_thread((folder / "fragile.saga.yaml").write_text, definition)
    project = Project(load_settings(config=str(folder / "saga.toml")))
    client = Client(await connect(project.settings, env={}), project)
    bank = Bank(client, project, url)
    bulk, alone = (f"bulk{attempts}-1", f"bulk{attempts}-2"), f"alone{attempts}-1"
    starter = await client.starter("fragile")
    workers: list[WorkerProcess] = []

    def both_wait() -> bool:
        """The chunk and the single attempt wait for what others hold."""
        statement = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and application_name = %s"
        return bank.query(statement, f"saga-worker-{workers[-1].pid}") == [(2,)]

    async def new_worker() -> None:
        workers.append(WorkerProcess(f"worker-{len(workers)}", folder))
        await asyncio.to_thread(workers[-1].start)

    try:
        async with held(url, "insert into note select unnest(%s::text[]), 'held'", [bulk[0], alone]):
            handle = await starter.start_bulk([BulkRow(id, starter.make_request({"id": id})) for id in bulk])
            await starter.start(starter.make_request({"id": alone}))
            for _ in range(attempts):
                await new_worker()
                await until(both_wait, "an attempt of each")
                workers[-1].kill()
        await new_worker()
        assert (await asyncio.wait_for(handle.result(), LIMIT))["counts"] == {"COMPENSATED": 2}, workers[-1].tail()
        await finished(client, alone)
        ours, theirs = [(await client.view(id)).to_json() for id in (bulk[0], alone)]
        assert ours["steps"][0]["attempts"] == theirs["steps"][0]["attempts"] == attempts
        for story in (ours, theirs):
            story["reason"]["message"] = ""  # how the end of a worker was noticed
        assert outcome_of(ours, f"bulk{attempts}") == outcome_of(theirs, f"alone{attempts}")
        assert bank.query("select id from note") == []
    finally:
        for worker in workers:
            worker.kill()
