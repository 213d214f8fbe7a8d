"""A guarded attempt lost with its worker is detected by missing heartbeats, long before its timeout."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from temporalio.api.enums.v1 import EventType, TimeoutType

from saga_activities.guard.schema import create_tables
from saga_workers.client import Client
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer, WorkerProcess
from tests.helpers.waiting import until

ACTIONS = """
import asyncio
from pathlib import Path

from sagas import Step, action

HERE = Path(__file__).parent


@action("slow.write", connection="books")
async def write(step: Step, seconds: float = 0.0, first: float | None = None) -> int:
    await step.sql.execute("insert into effect (step) values (:step)", step=step.id)
    (HERE / f"begun-{step.id}-{step.attempt}").touch()
    await asyncio.sleep(first if first is not None and step.attempt == 1 else seconds)
    return step.attempt


@action("slow.erase", connection="books")
async def erase(step: Step) -> None:
    await step.sql.execute("delete from effect where step = :step", step=step.id)
"""
SAGAS = {
    "dies": """
saga: dies
steps:
  - {id: a, uses: slow.write, with: {first: 300}, compensate: {uses: slow.erase, with: {}}, timeout: 10m}
""",
    "slow": """
saga: slow
steps:
  - {id: a, uses: slow.write, with: {seconds: 8}, compensate: {uses: slow.erase, with: {}}}
  - {id: b, uses: slow.write, compensate: {uses: slow.erase, with: {}}}
""",
}


class Environment:
    """A project with a database of its own, and the client of its sagas."""

    def __init__(self, folder: Path, client: Client) -> None:
        self.folder, self.client = folder, client

    def effects(self) -> list[str]:
        with sqlite3.connect(self.folder / "books.db") as books:
            return [step for (step,) in books.execute("select step from effect order by step")]

    async def started(self, saga: str) -> str:
        """A saga whose step `a` is in the middle of its first attempt."""
        run = await self.client.start(saga, {}, id=f"{saga}-{uuid.uuid4()}")
        await until(lambda: asyncio.sleep(0, (self.folder / "begun-a-1").exists()))
        return run.id


@pytest.fixture
async def env(temporal: TemporalServer, tmp_path: Path) -> Environment:
    folder = tmp_path / "project"
    folder.mkdir()
    url = f"sqlite+aiosqlite:///{folder / 'books.db'}"
    (folder / "actions.py").write_text(ACTIONS)
    for name, text in SAGAS.items():
        (folder / f"{name}.saga.yaml").write_text(text)
    (folder / "saga.toml").write_text(
        f'definitions = ["."]\nactions = ["./actions.py"]\n[temporal]\naddress = "{temporal.address}"\n'
        f'task_queue = "recovery-{uuid.uuid4()}"\n[connections.books]\nurl = "{url}"\n'
    )
    engine = create_async_engine(url)
    await create_tables(engine)
    async with engine.begin() as connection:
        await connection.exec_driver_sql("create table effect (step text)")
    await engine.dispose()
    project = Project(load_settings(config=str(folder / "saga.toml")))
    return Environment(folder, await Client.connect(project))


async def test_a_killed_worker_is_detected_before_the_timeout(env: Environment) -> None:
    with WorkerProcess("worker", env.folder) as worker:
        saga_id = await env.started("dies")
        worker.kill()
        worker.start()
        story = await finished(env.client, saga_id)  # within a minute, where the timeout is ten
    assert story["state"] == "COMPLETED"
    assert story["steps"][0]["result"] == 2
    assert env.effects() == ["a"]
    assert await lost_attempts(env, saga_id) == [TimeoutType.TIMEOUT_TYPE_HEARTBEAT]


@pytest.mark.slow
async def test_a_slow_attempt_is_not_considered_lost(env: Environment) -> None:
    with WorkerProcess("worker", env.folder):
        saga_id = await env.started("slow")
        story = await finished(env.client, saga_id)
    assert [step["attempts"] for step in story["steps"]] == [1, 1]
    assert await lost_attempts(env, saga_id) == []


@pytest.mark.slow
async def test_an_attempt_kept_alive_by_the_worker_receives_no_cancel(env: Environment) -> None:
    """A cancel reaches attempts by the author's heartbeats alone; without them the attempt completes and is undone."""
    with WorkerProcess("worker", env.folder):
        saga_id = await env.started("slow")
        await env.client.cancel(saga_id, reason="a test")
        story = await finished(env.client, saga_id)
    assert story["state"] == "COMPENSATED"
    assert (story["steps"][0]["outcome"], story["steps"][0]["attempts"]) == ("done", 1)
    assert story["steps"][0]["compensation"]["state"] == "DONE"
    assert env.effects() == []


async def lost_attempts(env: Environment, saga_id: str) -> list[int]:
    """The kinds of timeouts that led to further attempts."""
    handle = env.client.temporal.get_workflow_handle(saga_id)
    collected = []
    async for event in handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            failure = event.activity_task_started_event_attributes.last_failure
            if failure.HasField("timeout_failure_info"):
                collected.append(failure.timeout_failure_info.timeout_type)
    return collected
