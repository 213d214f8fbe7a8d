"""A paused connection holds the Spark jobs that read it, before Spark is started."""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path

import pytest

from saga_activities import standing_pauses
from saga_activities.connections import open_engine
from saga_activities.ledger.pauses import begin_pause
from saga_spark.runner.runner_client import RunnerClient
from saga_workers.client import Client
from saga_workers.runtime.databases import set_up_database
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until

FACTS = """
saga: facts
steps:
  - id: a
    uses: spark
    with:
      sql: select * from orders
      inputs: {orders: {connection: books, table: orders}}
      output: {parquet: out}
"""
SAME = """
saga: same
steps:
  - id: a
    uses: reconcile
    with: {left: {parquet: "archive/*.parquet"}, right: {connection: books, table: orders}, key: [id]}
"""
SETTINGS = """
definitions = ["."]
[temporal]
address = "{address}"
task_queue = "{task_queue}"
[connections.shop]
url = "{url}"
[connections.books]
url = "{url}"
[ledger]
connection = "shop"
[spark]
ledger = "shop"
"""


async def is_held(client: Client, saga_id: str) -> bool:
    view = await client.view(saga_id)
    return view.paused is not None and (view.paused.name, view.paused.held) == ("books", ("a",))


@pytest.mark.parametrize("saga", ["facts", "same"])
async def test_a_job_waits_for_the_connection_of_an_input(
    temporal: TemporalServer, server: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saga: str
) -> None:
    async def start_job(*_: object, **__: object) -> None:
        raise AssertionError("Spark was asked for a job")

    monkeypatch.setattr(standing_pauses, "MAX_AGE", 0.0)
    monkeypatch.setattr(RunnerClient, "run", start_job)
    url = new_database(server)
    settings = SETTINGS.format(address=temporal.address, task_queue=f"spark-{uuid.uuid4()}", url=url)
    (tmp_path / "saga.toml").write_text(settings)
    (tmp_path / "facts.saga.yaml").write_text(FACTS)
    (tmp_path / "same.saga.yaml").write_text(SAME)
    project = Project(load_settings(config=str(tmp_path / "saga.toml")))
    await set_up_database(project.settings.sql_connection("shop"))
    engine = open_engine("shop", url, 1)
    assert await begin_pause(engine, "connection", "books", who="mia", reason="a move")
    await engine.dispose()
    async with running_worker(project, grace=timedelta(seconds=1)) as client:
        run = await client.start(saga, {})
        await until(lambda: is_held(client, run.id))
        await client.cancel(run.id, reason="enough")
        story = await finished(client, run.id)
    assert story["state"] == "COMPENSATED"
