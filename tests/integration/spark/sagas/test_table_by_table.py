"""The workers die while a catalog commits a joint publication table by table: reconcile finds it, it is completed."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from temporalio.client import Client as Temporal

from saga_workers.client import Client
from saga_workers.temporal.temporal_client import HeaderInterceptor
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.forked_commands import run_command
from tests.helpers.local_worker import finished
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until_in_thread
from tests.integration.spark.day_close_project import ICEBERG, open_day_close_project, read
from tests.integration.spark.sagas.crash_runner import CrashRunner
from tests.integration.spark.sinks.iceberg.rest_catalog import serve

# It costs cold starts of Spark.
pytestmark = pytest.mark.slow


async def test_workers_are_killed_between_two_tables(
    temporal: TemporalServer, server: DatabaseServer, tmp_path: Path
) -> None:
    running: list[CrashRunner] = []
    killed = threading.Event()

    def kill_workers() -> None:
        for worker in running[0].workers:
            worker.kill()
        killed.set()

    uri = new_database(server).replace("postgresql://", "postgresql+psycopg://")
    backing = SqlCatalog("lake", uri=uri, warehouse=(tmp_path / "warehouse").as_uri())
    with serve(backing, fails_after=[1], on_failure=kill_workers) as address:
        day_close = await open_day_close_project(
            tmp_path / "shop",
            server,
            temporal.address,
            publish="together",
            breakpoints=True,
            catalog=f'type = "rest"\nuri = "{address}"\nmulti_table_commit = true\n',
        )
        client = Client(await Temporal.connect(temporal.address, interceptors=[HeaderInterceptor()]), day_close.project)
        crash_runner = CrashRunner("iceberg", ICEBERG, day_close, client)
        running.append(crash_runner)

        def saga(*words: str) -> Any:
            done = run_command(["--json", *words], day_close.folder)
            assert done.stdout, done.stderr
            return json.loads(done.stdout)

        def findings() -> list[dict[str, Any]]:
            return [finding for finding in saga("reconcile")["findings"] if finding["class"] == "published_partly"]

        try:
            crash_runner.start()
            id = f"day-{uuid.uuid4()}"
            await client.start("day", {"day": "2026-01-02"}, id=id)
            await until_in_thread(killed.is_set)
            facts, totals = read(day_close, ICEBERG)
            assert (len(facts), totals) == (2, None)
            [found] = await asyncio.to_thread(findings)
            assert (found["saga_id"], found["place"], found["command"]) == (id, "lake.sales.facts", f"saga show {id}")
            shown = await asyncio.to_thread(saga, *found["command"].split()[1:])
            assert shown["stuck"] == [f"no worker polls the task queue {client.project.settings.temporal.task_queue}"]
            crash_runner.start()
            story = await finished(client, id, "240s")
            assert story["state"] == "COMPLETED", story["reason"]
            facts, totals = read(day_close, ICEBERG)
            assert (len(facts), [row["amount"] for row in totals]) == (2, [Decimal("2.00")])
            assert await asyncio.to_thread(findings) == []
            await (await client.undo(id, reason="tidy up", who="test")).result()
            assert [rows or [] for rows in read(day_close, ICEBERG)] == [[], []]
        finally:
            crash_runner.stop()
            backing.close()
