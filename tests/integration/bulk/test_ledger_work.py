"""Claims and final states are written by local activities; one that takes long is left to any worker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.enums.v1 import EventType

from saga_activities.attempt_context import AttemptContext
from saga_activities.bulk.bulk_activities import BulkActivities
from saga_workers.start.start_requests import BulkRow
from sagas.bulk.names import CLAIM_ACTIVITY, RECORD_ACTIVITY
from sagas.workflow import engine_activity
from tests.helpers.waiting import LIMIT
from tests.integration.bulk.conftest import Bank


async def run(bank: Bank, mark: str) -> Counter[str]:
    """Two sagas in one bulk workflow; returns how often each activity type was scheduled on the server."""
    starter = await bank.client.starter("waiting")
    inputs = [{"id": f"{mark}-{number}", "waits": False} for number in (1, 2)]
    handle = await starter.start_bulk([BulkRow(input["id"], starter.make_request(input)) for input in inputs])
    result = await asyncio.wait_for(handle.result(), LIMIT)
    assert result["counts"] == {"COMPLETED": 2}
    scheduled = Counter[str]()
    async for event in handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled[event.activity_task_scheduled_event_attributes.activity_type.name] += 1
    return scheduled


async def test_the_server_schedules_chunks_only(bank: Bank) -> None:
    scheduled = await run(bank, "local")
    assert scheduled.keys() == {"saga.chunk"}


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("name", [CLAIM_ACTIVITY, RECORD_ACTIVITY])
async def test_a_slow_one_is_left_to_any_worker(bank: Bank, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The heartbeats that other attempts send after a second must not end the local one, which has none."""
    honest, local = BulkActivities.perform, []

    async def slow(self: Any, type: str, request: Mapping[str, Any], attempt: AttemptContext) -> Any:
        if type == name:
            local.append(activity.info().is_local)
            if len(local) == 1:
                await asyncio.sleep(2.5)
        return await honest(self, type, request, attempt)

    monkeypatch.setattr(BulkActivities, "perform", slow)
    assert name not in await run(bank, f"slow-{name.removeprefix('saga.')}")
    assert local == [True]
    local.clear()
    monkeypatch.setattr(engine_activity, "LOCAL_TIMEOUT", timedelta(seconds=1))
    assert (await run(bank, f"late-{name.removeprefix('saga.')}"))[name] == 1
    assert local == [True, False]
