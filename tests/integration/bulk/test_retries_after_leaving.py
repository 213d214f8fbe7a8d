"""A saga that leaves its bulk workflow between two attempts goes on with the rest of its retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType

from sagas.bulk.names import TAKE_ACTIVITY
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.local_worker import running_worker
from tests.helpers.waiting import until
from tests.integration.bulk.conftest import Bank
from tests.integration.bulk.test_killed_workers import outcome_of

RETRIED = """
saga: retried
id: "${{ input.id }}"
input: {type: object, properties: {id: {type: string}}}
steps:
  - {id: first, uses: bank.note, with: {text: first}, compensate: bank.forget}
  - {id: second, uses: bank.note, with: {text: fails}, compensate: bank.forget,
     retry: {max_attempts: 5, intervals: [50ms, 6s, 200ms, 100ms]}}
"""


@pytest.fixture
async def retried(bank_project: tuple[Project, str]) -> AsyncIterator[Bank]:
    project, url = bank_project
    folder = Path(project.settings.root)
    await asyncio.to_thread((folder / "retried.saga.yaml").write_text, RETRIED)
    project = Project(load_settings(config=str(folder / "saga.toml")))
    async with running_worker(project) as client:
        yield Bank(client, project, url)
        await client.close()


@pytest.mark.slow
async def test_it_makes_the_attempts_that_are_left_when_they_are_due(retried: Bank) -> None:
    bank = retried
    result = await bank.start("retried", [{"id": "left-1"}])
    assert result["detached"] == ["left-1"]
    await bank.client.start("retried", {"id": "stayed-1"})
    for id in ("left-1", "stayed-1"):

        async def undone(id: str = id) -> bool:
            return (await bank.client.view(id)).state == "COMPENSATED"

        await until(undone)
    detached, alone = [(await bank.client.view(id)).to_json() for id in ("left-1", "stayed-1")]
    assert [step["attempts"] for step in detached["steps"]] == [step["attempts"] for step in alone["steps"]] == [1, 5]
    assert outcome_of(detached, "left") == outcome_of(alone, "stayed")

    history = await bank.client.temporal.get_workflow_handle("left-1").fetch_history()
    waited = next(event for event in history.events if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED)
    scheduled = next(
        event
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        and event.activity_task_scheduled_event_attributes.activity_type.name != TAKE_ACTIVITY
    )
    assert waited.event_id < scheduled.event_id
    assert 0 < waited.timer_started_event_attributes.start_to_fire_timeout.ToSeconds() <= 6
    assert scheduled.activity_task_scheduled_event_attributes.retry_policy.maximum_attempts == 3


async def test_a_cancel_does_not_wait_for_the_next_attempt(retried: Bank) -> None:
    """The attempt is due in seconds; nothing has happened, and nothing will."""
    bank = retried
    result = await bank.start("retried", [{"id": "cancelled-1"}])
    assert result["detached"] == ["cancelled-1"]
    assert await bank.client.cancel("cancelled-1", reason="not wanted", who="me") == "accepted"

    async def undone() -> bool:
        return (await bank.client.view("cancelled-1")).state == "COMPENSATED"

    await until(undone)
    view = await bank.client.view("cancelled-1")
    assert view.reason is not None
    assert (view.reason.kind, view.steps[1].attempts) == ("cancelled", 2)
    history = await bank.client.temporal.get_workflow_handle("cancelled-1").fetch_history()
    done = EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    asked = [event.activity_task_scheduled_event_attributes for event in history.events if event.event_type == done]
    assert "second" not in [request.activity_id for request in asked]
    assert bank.query("select count(*) from note") == [(0,)]
