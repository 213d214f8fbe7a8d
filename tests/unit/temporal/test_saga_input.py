"""The input of a saga in the history of its run, as the worker that has checked its start has completed it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import temporalio.converter
from temporalio.api.common.v1 import ActivityType, Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from saga_workers.temporal.saga_input import read_input
from sagas.protocol.payloads import LOAD_ACTIVITY


async def payload(value: Any) -> Payload:
    [encoded] = await temporalio.converter.default().encode([value])
    return encoded


@pytest.mark.parametrize("retries", [0, 300])
async def test_the_check_is_found_after_a_first_task_that_timed_out(retries: int) -> None:
    """Answers that do not count may come before it, each with a timer."""
    started, scheduled, completed = (
        HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED),
        HistoryEvent(event_type=EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED),
        HistoryEvent(event_type=EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED),
    )
    given, whole = await payload({"city": "rome"}), await payload({"input": {"city": "rome", "nights": 1}})
    started.workflow_execution_started_event_attributes.input.payloads.append(given)
    scheduled.activity_task_scheduled_event_attributes.activity_type.CopyFrom(ActivityType(name=LOAD_ACTIVITY))
    completed.activity_task_completed_event_attributes.scheduled_event_id = 6
    completed.activity_task_completed_event_attributes.result.payloads.append(whole)
    task = [
        HistoryEvent(event_type=each)
        for each in (
            EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
            EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
            EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
            EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
        )
    ]

    timer = HistoryEvent(event_type=EventType.EVENT_TYPE_TIMER_STARTED)

    async def events(**_: Any) -> AsyncIterator[HistoryEvent]:
        for number, event in enumerate([started, *task, scheduled, *[timer] * retries, completed], 1):
            event.event_id = number
            yield event

    handle = SimpleNamespace(fetch_history_events=events)
    temporal: Any = SimpleNamespace(
        get_workflow_handle=lambda id, run_id: handle, data_converter=temporalio.converter.default()
    )
    run: Any = SimpleNamespace(id="stay-1", run_id="run", raw=SimpleNamespace(first_run_id="run"))
    described: Any = SimpleNamespace(run=run)

    read = await read_input(temporal, described, None)

    assert (read.value, read.is_whole) == ({"city": "rome", "nights": 1}, True)
