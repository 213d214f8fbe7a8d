"""Temporal answers a poll for the end of a run only when the poll expires."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from temporalio.client import (
    Client,
    FetchWorkflowHistoryEventsInput,
    Interceptor,
    OutboundInterceptor,
    WorkflowFailureError,
    WorkflowHistoryEventAsyncIterator,
)

from saga_workers.temporal.run_results import wait_for_result
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import LIMIT


class LatePolls(Interceptor):
    """A client whose first poll for the end of a run has no answer."""

    polls = 0

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        counted = self

        class Polls(OutboundInterceptor):
            def fetch_workflow_history_events(
                self, input: FetchWorkflowHistoryEventsInput
            ) -> WorkflowHistoryEventAsyncIterator:
                events = super().fetch_workflow_history_events(input)
                counted.polls += 1
                return NoEvents(events) if counted.polls == 1 else events

        return Polls(next)


class NoEvents(WorkflowHistoryEventAsyncIterator):
    def __init__(self, events: WorkflowHistoryEventAsyncIterator) -> None:
        super().__init__(events._client, events._input)

    async def __anext__(self) -> Any:
        await asyncio.sleep(LIMIT)
        raise StopAsyncIteration


async def test_the_end_of_a_run_is_seen_although_a_poll_has_missed_it(temporal: TemporalServer) -> None:
    polls = LatePolls()
    client = await Client.connect(temporal.address, interceptors=[polls])
    handle = await client.start_workflow("nobody", id=f"missed-{uuid.uuid4()}", task_queue=f"nobody-{uuid.uuid4()}")
    await handle.terminate()
    with pytest.raises(WorkflowFailureError):
        async with asyncio.timeout(LIMIT / 2):
            await wait_for_result(client.get_workflow_handle(handle.id))
    assert polls.polls == 2
