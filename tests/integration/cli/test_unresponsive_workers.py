"""A worker that is killed or frozen: `list --stuck`, `show` and `list` report it while the server still lists it."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from saga_workers.stuck import stuck_sagas
from saga_workers.temporal import temporal_runs
from tests.helpers.processes import WorkerProcess
from tests.helpers.waiting import LIMIT, until
from tests.integration.cli.conftest import CommandLine, fresh
from tests.integration.cli.test_start_and_show import state_of, until_shown


@pytest.fixture(autouse=True)
def patient_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine Temporal may need long for a run, and `list --stuck` would give up reading it: then it says so,
    instead of the reason.
    """
    monkeypatch.setattr(stuck_sagas, "RUN_TIMEOUT", LIMIT)


async def waiting(cli_with_worker_process: CommandLine) -> str:
    """A saga that waits for a signal."""
    id = fresh("ask")
    await cli_with_worker_process.saga("start", "ask", "--id", id)
    await until_shown(cli_with_worker_process, ("show", id), lambda story: state_of(story, 1) == "RUNNING")
    return id


async def stuck(cli_with_worker_process: CommandLine, id: str) -> list[str]:
    """Reasons of a saga in `list --stuck`."""

    def reported(rows: list[dict[str, Any]]) -> bool:
        return id in [row["id"] for row in rows]

    rows = await until_shown(cli_with_worker_process, ("list", "--stuck"), reported)
    return next(row["stuck"] for row in rows if row["id"] == id)


async def until_nothing_is_stuck(cli_with_worker_process: CommandLine) -> None:
    """The worker may be too busy to answer at once, as every other process of the machine."""

    async def is_empty() -> bool:
        return (await cli_with_worker_process.saga("list", "--stuck")).out.strip() == "nothing is stuck"

    await until(is_empty, "nothing is stuck")


@pytest.mark.parametrize("how", ["kill", pytest.param("freeze", marks=pytest.mark.slow)])
async def test_an_unresponsive_saga_is_listed_as_stuck_while_the_server_lists_its_worker(
    cli_with_worker_process: CommandLine, worker: WorkerProcess, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six seconds after the worker was killed on an idle machine; by the server's list it would be ninety or more."""
    # However long it takes on a busy machine, the worker counts as listed: only a missing answer shows that it is gone.
    monkeypatch.setattr(temporal_runs, "POLLER_TIMEOUT", float("inf"))
    id = await waiting(cli_with_worker_process)
    await until_nothing_is_stuck(cli_with_worker_process)
    getattr(worker, how)()
    await cli_with_worker_process.client.temporal.get_workflow_handle(id).signal(
        "approve"
    )  # now a workflow task is due
    assert await stuck(cli_with_worker_process, id) == [
        f"no worker answers on the task queue {cli_with_worker_process.client.project.settings.temporal.task_queue}"
    ]
    shown = await cli_with_worker_process.saga("show", id)
    assert shown.code == 0
    assert "incomplete: no worker answers on the task queue" in shown.out
    listed = (await cli_with_worker_process.saga("--json", "list")).json
    assert "no worker answers" in listed[0]["incomplete"]
    if how == "freeze":
        worker.thaw()
    else:
        worker.start()
    assert (await cli_with_worker_process.saga("watch", id, "--timeout", f"{LIMIT:g}s")).code == 0
    await until_nothing_is_stuck(cli_with_worker_process)


@pytest.mark.slow
async def test_a_frozen_worker_is_not_reported_as_a_failing_workflow_task(
    cli_with_worker_process: CommandLine, worker: WorkerProcess
) -> None:
    """The server repeats the task of a frozen worker as it repeats a failing one; the history shows which it is."""
    id, temporal = fresh("ask"), cli_with_worker_process.client.temporal
    queue = cli_with_worker_process.client.project.settings.temporal.task_queue
    handle = await temporal.start_workflow("ask", {}, id=id, task_queue=queue, task_timeout=timedelta(seconds=1))
    await until_shown(cli_with_worker_process, ("show", id), lambda story: state_of(story, 1) == "RUNNING")
    worker.freeze()
    try:
        await cli_with_worker_process.saga("signal", id, "approve")
        end = time.monotonic() + LIMIT
        while (await handle.describe()).raw_description.pending_workflow_task.attempt < 2:
            assert time.monotonic() < end
            await asyncio.sleep(0.2)
        reasons = await stuck(cli_with_worker_process, id)
        assert len(reasons) == 1
        assert "no worker answers" in reasons[0]
    finally:
        worker.thaw()
    assert (await cli_with_worker_process.saga("watch", id, "--timeout", f"{LIMIT:g}s")).code == 0


@pytest.mark.slow
async def test_a_long_list_waits_for_one_timeout(cli_with_worker_process: CommandLine, worker: WorkerProcess) -> None:
    ids = {await waiting(cli_with_worker_process), *(fresh("ask") for _ in range(59))}
    await asyncio.gather(*(cli_with_worker_process.client.start("ask", {}, id=id) for id in ids))
    await until_shown(
        cli_with_worker_process, ("list", "--limit", "200"), lambda rows: ids <= {row["id"] for row in rows}
    )
    worker.kill()
    for words in (("list", "--stuck", "--limit", "200"), ("list", "--limit", "200")):
        began = time.monotonic()
        rows = (await cli_with_worker_process.saga("--json", *words)).json
        assert {row["id"] for row in rows} >= ids
        assert time.monotonic() - began < 20.0  # one after the other in sixteens it would be half a minute or more
