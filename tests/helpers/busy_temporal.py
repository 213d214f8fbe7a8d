"""A Temporal server that is busy, and then loses an answer, seen from one client."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode


def refuse_and_lose_update(monkeypatch: pytest.MonkeyPatch, temporal: Temporal) -> None:
    """The first update of this client is refused, and the answer to the second request is lost."""
    service, sent = temporal.workflow_service, 0
    send = service.update_workflow_execution

    async def answer(*request: Any, **options: Any) -> Any:
        nonlocal sent
        sent += 1
        if sent == 1:
            raise RPCError("too many updates", RPCStatusCode.RESOURCE_EXHAUSTED, b"")
        response = await send(*request, **options)
        if sent == 2:
            raise RPCError("connection reset", RPCStatusCode.UNAVAILABLE, b"")
        return response

    monkeypatch.setattr(service, "update_workflow_execution", answer)


async def accepted_updates(run: WorkflowHandle[Any, Any]) -> int:
    """The number of updates that a run has accepted."""
    events = (await run.fetch_history()).events
    return sum(event.HasField("workflow_execution_update_accepted_event_attributes") for event in events)
