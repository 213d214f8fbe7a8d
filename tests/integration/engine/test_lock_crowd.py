"""Many sagas that need the same lock, on a real server and PostgreSQL: fair, and none is forgotten."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

import pytest
from sqlalchemy import text

from saga_activities.locks.lock_list import open_requests
from saga_activities.locks.tables import create_tables
from saga_workers.runtime.databases import open_command_engine, set_up_database
from sagas import Step, action
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer
from tests.integration.engine.environment import handle

COUNT = 200

ORDER = """
saga: order
locks: {keys: [the-key], wait: 1h}
steps:
  - {id: a, uses: work, effect: none}
"""

MAX_PER_SAGA = 0.5
"""Seconds from one owner to the next. Without its signal, a saga asks again after 30 seconds only."""


@pytest.mark.slow
async def test_two_hundred_sagas_get_one_lock_in_the_order_of_their_arrival(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    running: list[str] = []
    served: list[tuple[str, float]] = []

    @action("work")
    async def work(step: Step) -> None:
        assert running == [], f"{step.saga_id} runs with the lock of {running}"
        running.append(step.saga_id)
        served.append((step.saga_id, time.monotonic()))
        await asyncio.sleep(0.001)
        running.remove(step.saga_id)

    project = make_project(
        tmp_path / "project",
        {"order": ORDER},
        [work],
        address=temporal.address,
        connections={"shop": new_database(postgres_server)},
        locks="shop",
    )
    await set_up_database(project.settings.sql_connection("shop"))
    engine = open_command_engine(project.settings.sql_connection("shop"))
    await create_tables(engine)
    async with running_worker(project) as client:
        starts = (client.start("order", {}, id=f"order-{number}") for number in range(COUNT))
        ids = [run.id for run in await asyncio.gather(*starts)]
        await asyncio.gather(*(handle(client, id).result() for id in ids))
        async with engine.connect() as connection:
            query = text("select saga_id from saga_lock_request order by position")
            arrived = list((await connection.execute(query)).scalars())
        assert [id for id, _ in served] == arrived
        gaps = [later - earlier for (_, earlier), (_, later) in itertools.pairwise(served)]
        assert max(gaps) < 25, "a saga was not woken"
        assert sum(gaps) < COUNT * MAX_PER_SAGA
        assert await open_requests(engine) == []
    await engine.dispose()
