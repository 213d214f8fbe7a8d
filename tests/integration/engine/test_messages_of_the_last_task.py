"""Messages in the task in which a run continues as new, or a bulk workflow ends: what they order is done.

A worker is away while signals fill the history, and the message comes last: all of it is in one workflow task, whose
history is long enough for a new run.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle

from saga_workers.client import Client
from sagas import Rejected
from sagas.protocol.batch_record import (
    CANCEL_SIGNAL,
    CLOSED_SIGNAL,
    OPENED_SIGNAL,
    PAUSE_SIGNAL,
    PROGRESS_SIGNAL,
    RECORD_QUERY,
    BatchRecord,
)
from sagas.protocol.payloads import BATCH_PREFIX, BATCH_WORKFLOW
from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle, open_environment, send_signed
from tests.integration.engine.test_continue_as_new import runs
from tests.replay.scenario import EARLY

WAITS = """
    saga: waits
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: p, uses: book, pivot: true}
"""
PARKED = """
    saga: parked
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: b, uses: work, compensate: unwork, on_failure: park}
      - {id: go, uses: wait, with: {signal: go}}
"""


@pytest.fixture(scope="module")
def early_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    """A server that suggests a new run after some dozens of events."""
    server = TemporalServer(tmp_path_factory.mktemp("last-task"), extra=[EARLY]).start()
    yield server
    server.kill()


@pytest.fixture
async def env(early_server: TemporalServer, tmp_path: Path) -> AsyncIterator[Environment]:
    environment = await open_environment(tmp_path, early_server.address)
    yield environment
    await environment.engine.dispose()


async def fill(run: WorkflowHandle[Any, Any]) -> None:
    for number in range(45):
        await run.signal("other", number)


async def accepted_in_the_first_run(run: WorkflowHandle[Any, Any], client: Client) -> bool:
    """True if the run that continued as new accepted an update after a new run was suggested to it."""
    first = (await run.describe()).raw_description.workflow_execution_info.first_run_id
    history = await client.temporal.get_workflow_handle(run.id, run_id=first).fetch_history()
    is_suggested = False
    for event in history.events:
        if event.HasField("workflow_task_started_event_attributes"):
            is_suggested = event.workflow_task_started_event_attributes.suggest_continue_as_new
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
            return is_suggested
    return False


async def test_a_pause(env: Environment) -> None:
    async with env.serving(WAITS) as client:
        saga = await begin(client, "waits")
        await until(lambda: _is_running(client, saga, "go"))
    await fill(handle(client, saga))
    pausing = asyncio.create_task(handle(client, saga).execute_update("pause", {"who": "mia", "reason": "lunch"}))
    await asyncio.sleep(1)
    async with env.again() as client:
        await pausing
        await until(lambda: _has_continued(client, saga))
        assert (paused := (await client.view(saga)).paused) is not None
        assert paused.reason == "lunch"
        assert await accepted_in_the_first_run(handle(client, saga), client)
        await handle(client, saga).signal("go", 1)
        await until(lambda: _is_held(client, saga, "p"))
        assert env.log() == ["do a"]
        await client.resume(saga)
        assert (await finished(client, saga))["state"] == "COMPLETED"
    assert env.log() == ["do a", "do p"]


@pytest.mark.parametrize("decision", ["retry", "compensate"])
async def test_a_decision(env: Environment, decision: str) -> None:
    env.plan["do b"] = [Rejected("ask somebody"), "done"]
    async with env.serving(PARKED) as client:
        saga = await begin(client, "parked")
        assert (await finished(client, saga))["state"] == "PARKED"
    await fill(handle(client, saga))
    request = {"step": "b", "decision": decision, "reason": "asked", "who": "ada"}
    deciding = asyncio.create_task(send_signed(client, saga, request))
    await asyncio.sleep(1)
    async with env.again() as client:
        await deciding
        if decision == "retry":
            await handle(client, saga).signal("go", 1)
        story = await finished(client, saga)
        assert [entry["decision"] for entry in story["operator"]] == [decision]
        assert await runs(client, saga) > 1
        assert await accepted_in_the_first_run(handle(client, saga), client)
    assert story["state"] == {"retry": "COMPLETED", "compensate": "COMPENSATED"}[decision]


@pytest.mark.parametrize("message", [PAUSE_SIGNAL, CANCEL_SIGNAL, PROGRESS_SIGNAL, CLOSED_SIGNAL])
async def test_the_record_of_a_batch(env: Environment, message: str) -> None:
    record = BatchRecord(f"b-{uuid.uuid4()}", saga="waits", bulk=False, client="first", total=9)
    async with env.serving(WAITS) as client:
        run = await client.temporal.start_workflow(
            BATCH_WORKFLOW,
            record.to_json(),
            id=BATCH_PREFIX + record.id,
            task_queue=client.project.settings.temporal.task_queue,
            start_signal=OPENED_SIGNAL,
            start_signal_args=[record.to_json()],
        )
        await run.query(RECORD_QUERY)
    await fill(run)
    by_command = replace(record, started=7).to_json()
    await run.signal(message, by_command if message in (PROGRESS_SIGNAL, CLOSED_SIGNAL) else {"by": "mia"})
    async with env.again():
        if message == CLOSED_SIGNAL:
            assert (await run.result())["started"] == 7
            return
        await until(lambda: _has_continued(client, run.id))
        kept = await run.query(RECORD_QUERY)
        assert (kept["started"], kept["state"]) == {
            PAUSE_SIGNAL: (0, "PAUSED"),
            CANCEL_SIGNAL: (0, "CANCELLED"),
            PROGRESS_SIGNAL: (7, "STARTING"),
        }[message]
        await run.terminate()


async def _is_running(client: Client, saga: str, step: str) -> bool:
    return any((row["id"], row["state"]) == (step, "RUNNING") for row in (await client.show(saga))["steps"])


async def _has_continued(client: Client, saga: str) -> bool:
    return await runs(client, saga) > 1


async def _is_held(client: Client, saga: str, step: str) -> bool:
    paused = (await client.view(saga)).paused
    return paused is not None and step in paused.held
