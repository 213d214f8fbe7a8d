"""A worker of another project asks for its next attempt after years: the call ends, unless its `retry` is as long."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.views.saga_list import SagaFilter
from sagas.workflow import activity_calls
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until

FOREIGN = """
saga: foreign
steps:
  - id: seat
    uses: seats.take
    task_queue: QUEUE
    retry: {max_attempts: 1000000, max_interval: 1h}
    compensate: {uses: seats.free, retry: {max_attempts: 1000000, max_interval: 1h}}
"""


@activity.defn(name="seats.take")
async def take(argument: dict[str, Any]) -> None:
    raise ApplicationError("later", next_retry_delay=timedelta(days=3650))


@activity.defn(name="seats.free")
async def free(argument: dict[str, Any]) -> None:
    raise ApplicationError("later", next_retry_delay=timedelta(days=3650))


LIMITED = """
saga: limited
steps:
  - id: seat
    uses: seats.take
    task_queue: QUEUE
    retry: {RETRY}
    compensate: {uses: seats.free, retry: {RETRY}}
"""


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("retry", ["give_up_after: 1h", "max_attempts: 12", "max_attempts: 1000, intervals: [1s, 5m]"])
async def test_a_worker_postpones_for_no_longer_than_retry_allows(
    tmp_path: Path, temporal: TemporalServer, retry: str
) -> None:
    queue = f"seats-{uuid.uuid4()}"
    limited = LIMITED.replace("QUEUE", queue).replace("RETRY", retry)
    project = make_project(tmp_path, {"limited": limited}, [], address=temporal.address)
    async with running_worker(project) as client, Worker(client.temporal, task_queue=queue, activities=[take, free]):
        id = f"limited-{uuid.uuid4()}"
        await client.start("limited", {}, id=id)

        async def is_parked() -> bool:
            return (await client.view(id)).state == "PARKED"

        await until(is_parked, "neither call waits for years")
        view = await client.view(id)
        assert [(row.step, row.op) for row in view.parked] == [("seat", "undo")]
        assert (view.steps[0].outcome, view.reason and view.reason.kind) == ("unknown", "unknown")
        await client.temporal.get_workflow_handle(id).terminate()


async def test_an_attempt_that_its_worker_postpones_for_years_is_listed_as_stuck(
    tmp_path: Path, temporal: TemporalServer
) -> None:
    queue = f"seats-{uuid.uuid4()}"
    project = make_project(tmp_path, {"foreign": FOREIGN.replace("QUEUE", queue)}, [], address=temporal.address)
    async with running_worker(project) as client, Worker(client.temporal, task_queue=queue, activities=[take, free]):
        id = f"foreign-{uuid.uuid4()}"
        await client.start("foreign", {}, id=id)

        async def reasons() -> list[str]:
            criteria = SagaFilter(task_queue=project.settings.temporal.task_queue)
            views = [view async for view in list_stuck(client.locator, criteria, limit=5)]
            return [reason for view in views for reason in view.stuck or ()]

        async def is_listed(what: str) -> bool:
            return any(reason.startswith(f"{what} waits until 20") for reason in await reasons())

        await until(lambda: is_listed("seat"))
        [step] = (await client.show(id))["steps"]
        assert step["next_attempt_at"] > "2030"
        await client.cancel(id)
        await until(lambda: is_listed("the undo of seat"))
        [step] = (await client.show(id))["steps"]
        assert step["compensation"]["next_attempt_at"] > "2030"
        assert step["compensation"]["error"]["message"] == "later"
        await client.temporal.get_workflow_handle(id).terminate()


@activity.defn(name="seats.take")
async def take_again(argument: dict[str, Any]) -> None:
    if activity.info().attempt == 1:
        raise ApplicationError("not yet", next_retry_delay=timedelta(milliseconds=1))


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("attempts", [pytest.param(0, marks=pytest.mark.slow), 1])
async def test_a_call_waits_without_limit_for_a_worker(
    tmp_path: Path, temporal: TemporalServer, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    monkeypatch.setattr(activity_calls, "_time_limit", lambda call: 10.0)
    queue = f"seats-{uuid.uuid4()}"
    limited = LIMITED.replace("QUEUE", queue).replace("RETRY", "max_attempts: 12")
    project = make_project(tmp_path, {"limited": limited}, [], address=temporal.address)
    async with running_worker(project) as client:
        id = f"limited-{uuid.uuid4()}"
        handle = client.temporal.get_workflow_handle(id)
        made = asyncio.Event()

        @activity.defn(name="seats.take")
        async def take_once(argument: dict[str, Any]) -> None:
            made.set()
            raise ApplicationError("not yet", next_retry_delay=timedelta(seconds=5))

        async def is_called_again() -> bool:
            history = await handle.fetch_history()
            calls = sum(event.HasField("activity_task_scheduled_event_attributes") for event in history.events)
            return calls > 2

        await client.start("limited", {}, id=id)
        if attempts:
            async with Worker(client.temporal, task_queue=queue, activities=[take_once]):
                await made.wait()
        await until(is_called_again)
        async with Worker(client.temporal, task_queue=queue, activities=[take_again]):
            assert (await finished(client, id))["state"] == "COMPLETED"
