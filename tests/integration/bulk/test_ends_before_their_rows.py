"""Sagas that have ended in a bulk workflow which was closed before it had written their rows."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from saga_activities.attempt_context import AttemptContext
from saga_activities.bulk.bulk_activities import BulkActivities
from saga_workers.start.start_requests import BulkRow
from saga_workers.stuck import continuation
from saga_workers.stuck.continuation import continue_saga
from saga_workers.views.answering import Workers
from sagas.bulk.names import RECORD_ACTIVITY
from sagas.protocol.payloads import VIEW_QUERY
from tests.helpers.waiting import LIMIT
from tests.integration.bulk.conftest import Bank
from tests.integration.bulk.test_bulk_execution import transfer


async def test_the_row_is_written_from_what_is_signed(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody's worker may answer a query: a view that no worker of the project has signed tells nothing."""
    bank.open_accounts(200)
    recording = asyncio.Event()
    honest, ask = BulkActivities.perform, Workers.query

    async def perform(self: Any, type: str, request: Mapping[str, Any], attempt: AttemptContext) -> Any:
        if type == RECORD_ACTIVITY:
            recording.set()
            await asyncio.Event().wait()
        return await honest(self, type, request, attempt)

    async def forge(self: Any, described: Any, name: str, *arguments: Any) -> Any:
        answer = await ask(self, described, name, *arguments)
        if name != VIEW_QUERY:
            return answer
        forged = {**json.loads(answer["view"]), "state": "COMPENSATED", "phase": "backward"}
        return {**answer, "view": json.dumps(forged)}

    monkeypatch.setattr(BulkActivities, "perform", perform)
    monkeypatch.setattr(continuation, "QUERY_TIMEOUT", timedelta(seconds=LIMIT))  # a busy machine replays slowly
    id = f"recorded-{uuid.uuid4()}"
    starter = await bank.client.starter("transfer")
    bulk = await starter.start_bulk([BulkRow(id, starter.make_request({**transfer(1), "id": id}))])
    await asyncio.wait_for(recording.wait(), LIMIT)
    await bulk.terminate(reason="by mistake")
    with monkeypatch.context() as forged:
        forged.setattr(Workers, "query", forge)
        assert await continue_saga(bank.client.locator, id, "me", "test") == "its row is written as COMPLETED"
    view = await bank.client.view(id)
    assert (view.state, view.output, view.can_undo) == ("COMPLETED", {"moved": 10}, True)
    undo = await bank.client.undo(id, reason="test", who="me")
    await bank.client.temporal.get_workflow_handle(undo.id).result()
    assert bank.balances()["a1"] == 100
