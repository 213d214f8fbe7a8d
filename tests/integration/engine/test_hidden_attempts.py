"""A worker without the action takes later attempts: what an earlier one has done must not be forgotten."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.worker import Worker

from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until

FOREIGN = """
saga: foreign
steps:
  - id: charge
    uses: legacy.charge
    task_queue: QUEUE
    timeout: 30s
    retry: {max_attempts: MAX, initial_interval: 100ms, max_interval: 1s}
    compensate: legacy.refund
"""


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("maximum", [1, 3])
async def test_an_effect_is_undone_although_the_last_attempt_found_no_worker(
    tmp_path: Path, temporal: TemporalServer, maximum: int
) -> None:
    """With a single attempt none is before it: nothing has happened, and nothing is undone."""
    queue, effects, began = f"legacy-{uuid.uuid4()}", [], asyncio.Event()

    @activity.defn(name="legacy.charge")
    async def charge(argument: dict[str, Any]) -> None:
        effects.append("charge")
        began.set()
        await asyncio.Event().wait()

    @activity.defn(name="legacy.refund")
    async def refund(argument: dict[str, Any]) -> None:
        effects.append("refund")

    text = FOREIGN.replace("QUEUE", queue).replace("MAX", str(maximum))
    project = make_project(tmp_path, {"foreign": text}, [], address=temporal.address)
    async with running_worker(project) as client:

        async def is_waiting() -> bool:
            [step] = (await client.show(id))["steps"]
            return (step["error"] or {}).get("details", {}).get("uncounted", 0) > 0

        id = f"foreign-{uuid.uuid4()}"
        await client.start("foreign", {}, id=id)
        if maximum > 1:
            async with Worker(client.temporal, task_queue=queue, activities=[charge, refund]):
                await began.wait()
        async with Worker(client.temporal, task_queue=queue, activities=[refund]):
            await until(is_waiting)
            await client.cancel(id)
            view = await finished(client, id)
    [step] = view["steps"]
    assert view["state"] == "COMPENSATED"
    assert effects == (["charge", "refund"] if maximum > 1 else [])
    assert step["outcome"] == ("unknown" if maximum > 1 else "failed")
