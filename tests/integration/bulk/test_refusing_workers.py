"""A worker that cannot do what a begun bulk workflow needs, as one without [ledger] during a rollout, ends no saga."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from saga_activities.attempt_context import AttemptContext
from saga_activities.bulk.bulk_activities import BulkActivities
from saga_workers.start.start_requests import BulkRow
from sagas.bulk.names import DETACH_ACTIVITY, RECORD_ACTIVITY
from sagas.errors import RefusedError
from tests.helpers.waiting import LIMIT
from tests.integration.bulk.conftest import Bank


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("activity", [RECORD_ACTIVITY, DETACH_ACTIVITY])
async def test_another_worker_answers(bank: Bank, monkeypatch: pytest.MonkeyPatch, activity: str) -> None:
    honest, refused = BulkActivities.perform, []

    async def refuse_once(self: Any, name: str, request: Mapping[str, Any], attempt: AttemptContext) -> Any:
        if name == activity and not refused:
            refused.append(name)
            raise RefusedError("bulk execution needs a ledger")
        return await honest(self, name, request, attempt)

    monkeypatch.setattr(BulkActivities, "perform", refuse_once)
    mark = activity.removeprefix("saga.")
    inputs = [{"id": f"{mark}-{number}", "waits": number == 2} for number in (1, 2)]
    starter = await bank.client.starter("waiting")
    rows = [BulkRow(str(input["id"]), starter.make_request(input)) for input in inputs]
    handle = await starter.start_bulk(rows)
    result = await asyncio.wait_for(handle.result(), LIMIT)
    assert refused == [activity]
    assert result["counts"] == {"COMPLETED": 1, "DETACHED": 1}
    assert bank.states() == {f"{mark}-1": "COMPLETED"}
    await bank.client.signal(f"{mark}-2", "go")
    await bank.client.temporal.get_workflow_handle(f"{mark}-2").result()
