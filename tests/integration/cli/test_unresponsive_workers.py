"""A worker that is killed or frozen: `list --stuck`, `show` and `list` say within seconds that nobody answers."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from tests.helpers.processes import WorkerProcess
from tests.integration.cli.conftest import Shell, fresh
from tests.integration.cli.test_start_and_show import until

WITHIN = 45.0
"""Seconds from the death of the worker: six on an idle machine; the server lists a dead worker for ninety."""


async def waiting(office: Shell) -> str:
    """A saga that waits for a signal."""
    id = fresh("ask")
    await office.saga("start", "ask", "--id", id)
    await until(office, ("show", id), lambda story: story["steps"] and story["steps"][1]["state"] == "RUNNING")
    return id


async def stuck(office: Shell, id: str) -> tuple[list[str], float]:
    """Its reasons in `list --stuck`, and when they were there."""

    def told(rows: list[dict[str, Any]]) -> bool:
        return id in [row["id"] for row in rows]

    rows = await until(office, ("list", "--stuck"), told)
    return next(row["stuck"] for row in rows if row["id"] == id), time.monotonic()


@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_a_saga_without_an_answer_is_stuck_within_seconds(office: Shell, worker: WorkerProcess, how: str) -> None:
    id = await waiting(office)
    assert (await office.saga("list", "--stuck")).out.strip() == "nothing is stuck"
    getattr(worker, how)()
    died = time.monotonic()
    await office.client.temporal.get_workflow_handle(id).signal("approve")  # now a workflow task is due
    reasons, seen = await stuck(office, id)
    assert seen - died < WITHIN
    assert reasons == [f"no worker answers on the task queue {office.client.project.settings.temporal.task_queue}"]
    shown = await office.saga("show", id)
    assert shown.code == 0
    assert "not the whole story: no worker answers on the task queue" in shown.out
    listed = (await office.saga("--json", "list")).json
    assert "no worker answers" in listed[0]["incomplete"]
    if how == "freeze":
        worker.thaw()
    else:
        worker.start()
    assert (await office.saga("watch", id, "--timeout", "60s")).code == 0
    assert (await office.saga("list", "--stuck")).out.strip() == "nothing is stuck"


async def test_a_frozen_worker_is_no_workflow_task_that_fails(office: Shell, worker: WorkerProcess) -> None:
    """The server repeats the task of a frozen worker as it repeats one that fails; the history tells which it is."""
    id, temporal = fresh("ask"), office.client.temporal
    queue = office.client.project.settings.temporal.task_queue
    handle = await temporal.start_workflow("ask", {}, id=id, task_queue=queue, task_timeout=timedelta(seconds=1))
    await until(office, ("show", id), lambda story: story["steps"] and story["steps"][1]["state"] == "RUNNING")
    worker.freeze()
    try:
        await office.saga("signal", id, "approve")
        end = time.monotonic() + 60
        while (await handle.describe()).raw_description.pending_workflow_task.attempt < 2:
            assert time.monotonic() < end
            await asyncio.sleep(0.2)
        reasons, _ = await stuck(office, id)
        assert len(reasons) == 1
        assert "no worker answers" in reasons[0]
    finally:
        worker.thaw()
    assert (await office.saga("watch", id, "--timeout", "60s")).code == 0


async def test_a_list_of_many_waits_once(office: Shell, worker: WorkerProcess) -> None:
    ids = {await waiting(office), *(fresh("ask") for _ in range(59))}
    await asyncio.gather(*(office.client.start("ask", {}, id=id) for id in ids))
    await until(office, ("list", "--limit", "200"), lambda rows: ids <= {row["id"] for row in rows})
    worker.kill()
    for words in (("list", "--stuck", "--limit", "200"), ("list", "--limit", "200")):
        began = time.monotonic()
        rows = (await office.saga("--json", *words)).json
        assert {row["id"] for row in rows} >= ids
        assert time.monotonic() - began < 20.0  # one after the other in sixteens it would be half a minute or more
