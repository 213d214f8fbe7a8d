"""Spark steps whose ledger is a MariaDB: staged, published, taken back and cleaned up, as a worker performs them."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import pytest_asyncio
import sqlalchemy as sa

from saga_activities.attempt_context import AttemptContext
from saga_activities.dispatcher import Dispatcher
from saga_activities.guard.tables import guard_table
from saga_activities.http import HttpConnections
from saga_spark.actions import SparkSteps
from saga_spark.sinks.parquet.parquet_pointer import read_pointer
from saga_spark.staging import stage_area
from saga_spark.staging.staging_attempt import transaction
from sagas.actions import Actions
from sagas.builtins.spark import DISCARD, PUBLISH, SPARK, UNPUBLISH
from sagas.protocol.messages import GuardSpec as Asked
from sagas.protocol.outcomes import Outcome
from tests.helpers.database_servers import DatabaseServer, mariadb
from tests.helpers.local_worker import finished, lab
from tests.helpers.processes import TemporalServer
from tests.integration.spark.day_close_project import ICEBERG, open_books, read
from tests.integration.spark.staging.staging_environment import Desk, Played, open_desk

ACTIONS = {"do": SPARK, "confirm": PUBLISH, "undo": DISCARD}


@pytest.fixture(scope="module")
def books() -> Iterator[DatabaseServer]:
    with mariadb() as found:
        yield found


@pytest_asyncio.fixture
async def desk(books: DatabaseServer, tmp_path: Path) -> AsyncIterator[Desk]:
    opened = await open_desk(tmp_path, books.url("mysql"))
    yield opened
    await opened.databases.close()


class Worker:
    """Performs the operations of one step, with a runner that only says what it was asked."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.beats = desk, 0
        steps = SparkSteps(desk.settings, desk.databases)
        self.runner: Any = Played(desk.settings, desk.saga, rows=3)
        steps._runner = self.runner
        self._dispatcher = Dispatcher(
            Actions([]), desk.databases, HttpConnections({}), dict.fromkeys((*ACTIONS.values(), UNPUBLISH), steps)
        )

    async def perform(self, op: str, generation: int = 1) -> Outcome:
        asked = self.desk.invocation(op, generation)
        confirmed = (UNPUBLISH, asked.arguments) if op == "undo" else None
        asked = replace(asked, action=ACTIONS[op], guard=Asked("books", confirmed=confirmed))
        self.runner.generation = generation
        now = time.time()
        about = AttemptContext(1, now, now + 60, self._beat, logging.getLogger("test"), saga="day")
        return await self._dispatcher.perform(asked, about)

    def _beat(self, details: Any = None) -> None:
        self.beats += 1

    def read(self) -> list[int]:
        """What a reader of the output sees."""
        place = self.desk.place
        files = read_pointer(str(place)) if (place / "_current.json").exists() else []
        return sorted(row["id"] for file in files for row in pq.read_table(file).to_pylist())


@pytest.mark.asyncio
async def test_staged_published_taken_back_and_cleaned_up(desk: Desk) -> None:
    worker = Worker(desk)
    assert (staged := await worker.perform("do")).kind == "done", staged
    assert worker.read() == []
    assert ((await desk.row()).state, worker.beats > 0) == ("STAGED", True)
    worker.runner.asked.clear()
    assert (await worker.perform("do")).result == staged.result
    assert worker.runner.tasks == [], "the stored result was given"

    assert (told := await worker.perform("confirm")).kind == "done", told
    assert (worker.read(), (await desk.row()).state) == ([0, 1, 2], "PUBLISHED")
    assert (await worker.perform("confirm")).result == told.result

    assert (told := await worker.perform("undo")).kind == "done", told
    assert (worker.read(), (await desk.row()).state) == ([], "RETRACTED")
    assert (await worker.perform("confirm")).kind == "late"

    assert (await worker.perform("do", 2)).kind == "done"
    assert (told := await worker.perform("undo", 2)).kind == "done", told
    assert (worker.read(), (await desk.row(2)).state) == ([], "DISCARDED")

    await desk.clean()
    assert desk.keys() == []
    async with transaction(desk.guard.engine) as connection:
        await connection.execute(sa.delete(guard_table))
    forgotten = await stage_area.drop_undo_data(desk.guard.engine, desk.settings, before=time.time() + 60)
    assert [row.target.generation for row in forgotten] == [1]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_day_is_published_together_and_undone(
    temporal: TemporalServer, server: DatabaseServer, books: DatabaseServer, tmp_path: Path
) -> None:
    shop = await open_books(tmp_path / "shop", server, temporal.address, publish="together", ledger=books.url("mysql"))
    async with lab(shop.project) as client:
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
