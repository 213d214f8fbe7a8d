"""Many starts with large valid inputs: a worker's memory stays below the bound of its settings."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import psutil
import pytest
from temporalio.client import Client as Temporal

from saga_workers.temporal.temporal_runs import list_runs
from tests.helpers.processes import CommandProcess, TemporalServer
from tests.helpers.waiting import until

WAITING = """
saga: waiting
input: {type: object, required: [note], properties: {note: {type: string}}}
steps:
  - {id: approval, uses: wait, with: {signal: approved}}
output: {size: "${{ input.note.size() }}"}
"""

SETTINGS = """
definitions = ["."]
[temporal]
address = "ADDRESS"
task_queue = "QUEUE"
[worker]
max_cached_bytes = 4_000_000
"""

NOTE = "x" * 900_000

BOUND = 45 * 4_000_000
"""Bytes; without a bound by size, the starts below take twice as much."""

STARTS = 60


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_large_inputs_leave_the_memory_of_a_worker(own_temporal: TemporalServer, tmp_path: Path) -> None:
    queue = f"flood-{uuid.uuid4()}"
    (tmp_path / "saga.toml").write_text(SETTINGS.replace("ADDRESS", own_temporal.address).replace("QUEUE", queue))
    (tmp_path / "waiting.saga.yaml").write_text(WAITING)
    client = await Temporal.connect(own_temporal.address)

    async def start(number: int) -> str:
        """Start a saga as any client of Temporal can, and let it come to its wait."""
        id = f"{queue}-{number}"
        handle = await client.start_workflow("waiting", {"note": NOTE}, id=id, task_queue=queue)

        async def waits() -> bool:
            run = (await handle.describe()).raw_description
            return not run.HasField("pending_workflow_task") and not run.pending_activities

        await until(waits)
        return id

    with CommandProcess("worker", tmp_path, "worker", "--grace", "1s", fresh=True) as worker:
        ids = [await start(number) for number in range(3)]
        memory = psutil.Process(worker.pid).memory_info
        before, most = memory().rss, 0
        for number in range(3, STARTS, 3):
            ids += await asyncio.gather(*(start(number + further) for further in range(3)))
            most = max(most, memory().rss)
        assert most - before < BOUND, f"{(most - before) / 2**20:.0f} MiB"
        # An evicted run is replayed, whatever it waits for.
        handles = [client.get_workflow_handle(id) for id in (ids[0], ids[-1])]
        for handle in handles:
            await handle.signal("approved", "yes")
            assert await handle.result() == {"size": len(NOTE)}


LARGE_MEMO = "x" * 1_900_000


@pytest.mark.timeout(200)
async def test_large_memos_hide_no_other_saga(own_temporal: TemporalServer) -> None:
    """A page of runs with the largest memos that Temporal takes is more than gRPC does."""
    client = await Temporal.connect(own_temporal.address)
    ids = {await _start_with_memo(client, number) for number in range(75)}

    async def all_listed() -> bool:
        return {run.id async for run in list_runs(client, "WorkflowType = 'large'")} == ids

    await until(all_listed)


async def _start_with_memo(client: Temporal, number: int) -> str:
    memo = {"hello": LARGE_MEMO}
    return (await client.start_workflow("large", id=f"large-{number}", task_queue="nobody-polls-it", memo=memo)).id
