"""SIGTERM while an attempt runs (`saga worker --grace`): a pivot ends as it began, another attempt is begun again."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from saga_workers.client import Client
from saga_workers.temporal.temporal_client import connect
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer, WorkerProcess
from tests.helpers.waiting import until

ACTIONS = '''
import asyncio
from pathlib import Path
from sagas import Step, action

HERE = Path(__file__).parent


@action("slow.pay")
async def pay(step: Step) -> int:
    """Takes as long as the test wants."""
    (HERE / f"begun-{step.attempt}").touch()
    while not (HERE / "go").exists():
        await asyncio.sleep(0.05)
    return step.attempt


@action("slow.take_back")
async def take_back(step: Step) -> None:
    """Undoes it."""
'''
SAGA = """
saga: slow
steps:
  - id: pay
    uses: slow.pay
    timeout: 5m
    retry: {initial_interval: 100ms}
    KIND
output: "${{ steps.pay.result }}"
"""
SETTINGS = """
definitions = ["."]
actions = ["./slow_actions.py"]
[temporal]
address = "ADDRESS"
task_queue = "QUEUE"
"""


async def make_client(folder: Path, temporal: TemporalServer, kind: str) -> Client:
    settings = SETTINGS.replace("ADDRESS", temporal.address).replace("QUEUE", f"grace-{uuid.uuid4()}")
    (folder / "saga.toml").write_text(settings, encoding="utf-8")
    (folder / "slow_actions.py").write_text(ACTIONS, encoding="utf-8")
    (folder / "slow.saga.yaml").write_text(SAGA.replace("KIND", kind), encoding="utf-8")
    project = Project(load_settings(folder, env={}))
    return Client(await connect(project.settings, env={}), project)


async def test_a_pivot_attempt_is_never_cut_off_at_shutdown(temporal: TemporalServer, tmp_path: Path) -> None:
    client = await make_client(tmp_path, temporal, "pivot: true")
    with worker("first", tmp_path) as first:
        run = await client.start("slow", {}, id=f"slow-{uuid.uuid4()}")
        await until((tmp_path / "begun-1").exists)
        stopping = asyncio.create_task(asyncio.to_thread(first.stop))
        await asyncio.sleep(3)  # three times its grace
        assert first.running, "nobody but its own end may decide about a pivot"
        (tmp_path / "go").touch()
        assert await stopping == 0, first.tail()
    with worker("second", tmp_path):
        story = await finished(client, run.id)
    assert (story["state"], story["output"]) == ("COMPLETED", 1)
    assert not (tmp_path / "begun-2").exists()


@pytest.mark.slow
async def test_other_attempts_are_cancelled_after_the_grace_and_repeated(
    temporal: TemporalServer, tmp_path: Path
) -> None:
    client = await make_client(tmp_path, temporal, "compensate: slow.take_back")
    with worker("first", tmp_path) as first:
        run = await client.start("slow", {}, id=f"slow-{uuid.uuid4()}")
        await until((tmp_path / "begun-1").exists)
        assert await asyncio.to_thread(first.stop) == 0, first.tail()
    (tmp_path / "go").touch()
    with worker("second", tmp_path):
        story = await finished(client, run.id)
    assert (story["state"], story["output"]) == ("COMPLETED", 2)


@contextlib.contextmanager
def worker(name: str, folder: Path) -> Iterator[WorkerProcess]:
    process = WorkerProcess(name, folder, grace="1s")
    try:
        yield process.start()
    finally:
        process.kill()
