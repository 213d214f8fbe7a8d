"""Spark steps whose ledger is a MariaDB: staged, published, reverted and cleaned up, as a worker performs them."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import pytest_asyncio
import sqlalchemy as sa

from saga_activities.attempt_context import AttemptContext
from saga_activities.bodies.action_bodies import ActionBodies
from saga_activities.dispatcher import Dispatcher
from saga_activities.guard.tables import guard_table
from saga_activities.http import HttpConnections
from saga_spark.actions import SparkSteps
from saga_spark.sinks.parquet.parquet_pointer import read_pointer
from saga_spark.staging import stage_clean_up
from saga_spark.staging.staging_attempt import transaction
from sagas.actions.registry import Actions
from sagas.builtins.spark import DISCARD, PUBLISH, REVERT, SPARK
from sagas.protocol.messages import GuardSpec as Asked
from sagas.protocol.outcomes import Outcome
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.new_databases import new_mariadb_database
from tests.helpers.processes import TemporalServer
from tests.integration.spark.day_close_project import ICEBERG, open_day_close_project, read
from tests.integration.spark.staging.staging_environment import FakeRunner, StagingEnvironment, open_staging

ACTIONS = {"do": SPARK, "confirm": PUBLISH, "undo": DISCARD}


@pytest_asyncio.fixture
async def staging(mariadb_server: DatabaseServer, tmp_path: Path) -> AsyncIterator[StagingEnvironment]:
    opened = await open_staging(tmp_path, await new_mariadb_database(mariadb_server))
    yield opened
    await opened.databases.close()


class Worker:
    """Performs the operations of one step, with a runner that echoes its requests."""

    def __init__(self, staging: StagingEnvironment) -> None:
        self.staging, self.beats = staging, 0
        steps = SparkSteps(staging.settings, staging.databases)
        self.runner: Any = FakeRunner(staging.settings, staging.saga, rows=3)
        steps._runner = self.runner
        self._dispatcher = Dispatcher(
            ActionBodies(Actions([])),
            staging.databases,
            HttpConnections({}),
            dict.fromkeys((*ACTIONS.values(), REVERT), steps),
        )

    async def perform(self, op: str, generation: int = 1) -> Outcome:
        asked = self.staging.invocation(op, generation)
        confirmed = (REVERT, asked.arguments) if op == "undo" else None
        asked = replace(asked, action=ACTIONS[op], guard=Asked("books", confirmed=confirmed))
        self.runner.generation = generation
        now = time.time()
        about = AttemptContext(1, now, now + 60, self._beat, logging.getLogger("test"), saga="day")
        return await self._dispatcher.perform(asked, about)

    def _beat(self, details: Any = None) -> None:
        self.beats += 1

    def read(self) -> list[int]:
        """Ids in the published output, as a reader sees them."""
        place = self.staging.place
        files = read_pointer(str(place)) if (place / "_current.json").exists() else []
        return sorted(row["id"] for file in files for row in pq.read_table(file).to_pylist())


@pytest.mark.asyncio
async def test_staged_published_reverted_and_cleaned_up(staging: StagingEnvironment) -> None:
    worker = Worker(staging)
    assert (staged := await worker.perform("do")).kind == "done", staged
    assert worker.read() == []
    assert ((await staging.row()).state, worker.beats > 0) == ("STAGED", True)
    worker.runner.asked.clear()
    assert (await worker.perform("do")).result == staged.result
    assert worker.runner.tasks == [], "the stored result was given"

    assert (reported := await worker.perform("confirm")).kind == "done", reported
    assert (worker.read(), (await staging.row()).state) == ([0, 1, 2], "PUBLISHED")
    assert (await worker.perform("confirm")).result == reported.result

    assert (reported := await worker.perform("undo")).kind == "done", reported
    assert (worker.read(), (await staging.row()).state) == ([], "REVERTED")
    assert (await worker.perform("confirm")).kind == "late"

    assert (await worker.perform("do", 2)).kind == "done"
    assert (reported := await worker.perform("undo", 2)).kind == "done", reported
    assert (worker.read(), (await staging.row(2)).state) == ([], "DISCARDED")

    await staging.clean()
    assert staging.keys() == []
    async with transaction(staging.guard.engine) as connection:
        await connection.execute(sa.delete(guard_table))
    forgotten = await stage_clean_up.drop_undo_data(staging.guard.engine, staging.settings, before=time.time() + 60)
    assert [row.target.generation for row in forgotten] == [1]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_day_is_published_together_and_undone(
    temporal: TemporalServer, server: DatabaseServer, mariadb_server: DatabaseServer, tmp_path: Path
) -> None:
    ledger = await new_mariadb_database(mariadb_server)
    shop = await open_day_close_project(tmp_path / "shop", server, temporal.address, publish="together", ledger=ledger)
    async with running_worker(shop.project) as client:
        refused, good = f"refused-{uuid.uuid4()}", f"good-{uuid.uuid4()}"
        await client.start("day", {"day": "2026-01-01", "refuse": True}, id=refused)
        assert (await finished(client, refused, "400s"))["state"] == "COMPENSATED"
        assert (any(read(shop, ICEBERG)), shop.staged()) == (False, [])
        run = await client.start("day", {"day": "2026-01-01"}, id=good)
        assert await run.result() == {"rows": 10}
        assert tuple(map(len, read(shop, ICEBERG))) == (10, 3)
        await (await client.undo(good, reason="wrong day", who="ada")).result()
        assert (await finished(client, good, "400s"))["state"] == "COMPENSATED"
        assert not any(read(shop, ICEBERG))
