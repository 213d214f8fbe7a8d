"""A worker of another project may postpone its next attempt for years: that is shown, and does not hold a cancel."""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.views.saga_list import SagaFilter
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until

FOREIGN = """
saga: foreign
steps:
  - id: seat
    uses: seats.take
    task_queue: QUEUE
    compensate: seats.free
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
    retry: {give_up_after: 1h}
    compensate: {uses: seats.free, retry: {give_up_after: 1h}}
"""


async def test_give_up_after_limits_how_long_a_worker_postpones(tmp_path: Path, temporal: TemporalServer) -> None:
    queue = f"seats-{uuid.uuid4()}"
    project = make_project(tmp_path, {"limited": LIMITED.replace("QUEUE", queue)}, [], address=temporal.address)
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
        await until(lambda: is_listed("seat~undo"))
        [step] = (await client.show(id))["steps"]
        assert step["compensation"]["next_attempt_at"] > "2030"
        assert step["compensation"]["error"]["message"] == "later"
        await client.temporal.get_workflow_handle(id).terminate()
