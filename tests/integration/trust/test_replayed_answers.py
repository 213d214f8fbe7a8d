"""Signed answers and notes of an attempt are not believed for another one: everybody can repeat them."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payloads, WorkflowExecution
from temporalio.api.enums.v1 import EventType, RetryState
from temporalio.api.failure.v1 import ActivityFailureInfo, ApplicationFailureInfo, Failure
from temporalio.api.workflowservice.v1 import (
    RecordActivityTaskHeartbeatByIdRequest,
    ResetActivityRequest,
    ResetWorkflowExecutionRequest,
    RespondActivityTaskCompletedByIdRequest,
    SignalWorkflowExecutionRequest,
)
from temporalio.common import RawValue
from temporalio.converter import DataConverter
from temporalio.exceptions import FailureError

from saga_workers.client import Client
from sagas import Absent, Done, Rejected, Step, action
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import encode_failure
from sagas.workflow import signed_answers
from sagas.workflow.json_payloads import json_payload
from tests.helpers import eager_start
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until

PROBED = """
saga: probed
steps:
  - {id: pay, uses: charge, idempotent: false, probe: look, compensate: refund,
     retry: {max_attempts: 4, initial_interval: 50ms, max_interval: 50ms}}
"""

NOTED = """
saga: noted
steps:
  - {id: pay, uses: charge, compensate: refund, retry: {max_attempts: 2, initial_interval: 50ms}}
"""


async def test_the_answer_of_an_earlier_probe_is_not_that_of_a_later_one(
    tmp_path: Path, temporal: TemporalServer
) -> None:
    calls: list[str] = []
    asked_again, may_answer = asyncio.Event(), asyncio.Event()

    @action("charge")
    async def charge(step: Step) -> None:
        calls.append("charge")
        if len(calls) > 1:
            calls.append("effect")
        raise ConnectionError("lost")

    @action("look", seals=True)
    async def look(step: Step) -> Absent | Done:
        if "effect" not in calls:
            return Absent()
        asked_again.set()
        await may_answer.wait()
        return Done({})

    @action("refund")
    async def refund(step: Step) -> None:
        calls.append("refund")

    project = make_project(tmp_path, {"probed": PROBED}, [charge, look, refund], address=temporal.address)
    async with running_worker(project) as client:
        id = f"probed-{uuid.uuid4()}"
        await client.start("probed", {}, id=id)
        await asyncio.wait_for(asked_again.wait(), 30)
        await client.temporal.workflow_service.respond_activity_task_completed_by_id(
            RespondActivityTaskCompletedByIdRequest(
                namespace=client.temporal.namespace,
                workflow_id=id,
                activity_id="pay~probe",
                result=await answer_of_first_probe(client, id),
                identity="stranger",
            )
        )
        may_answer.set()
        view = await finished(client, id)
    assert view["state"] in ("COMPLETED", "COMPENSATED")
    assert calls.count("effect") - calls.count("refund") == (view["state"] == "COMPLETED")
    assert calls.count("charge") == 2


async def answer_of_first_probe(client: Client, id: str) -> Payloads:
    history = await client.temporal.get_workflow_handle(id).fetch_history()
    probe = next(
        event.event_id
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_id == "pay~probe"
    )
    return next(
        event.activity_task_completed_event_attributes.result
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
        and event.activity_task_completed_event_attributes.scheduled_event_id == probe
    )


async def test_a_forged_heartbeat_hides_no_effect_of_an_earlier_attempt(
    tmp_path: Path, temporal: TemporalServer
) -> None:
    effects: list[str] = []
    began, may_end = asyncio.Event(), asyncio.Event()

    @action("charge")
    async def charge(step: Step) -> None:
        if step.attempt > 1:
            raise Rejected("no")
        effects.append("charge")
        began.set()
        await may_end.wait()
        raise ConnectionError("lost")

    @action("refund")
    async def refund(step: Step) -> None:
        effects.append("refund")

    project = make_project(tmp_path, {"noted": NOTED}, [charge, refund], address=temporal.address)
    async with running_worker(project) as client:
        id = f"noted-{uuid.uuid4()}"
        await client.start("noted", {}, id=id)
        await asyncio.wait_for(began.wait(), 30)
        note = [eager_start.json_payload(None), eager_start.json_payload({"attempts_without_effect": 1})]
        await client.temporal.workflow_service.record_activity_task_heartbeat_by_id(
            RecordActivityTaskHeartbeatByIdRequest(
                namespace=client.temporal.namespace,
                workflow_id=id,
                activity_id="pay",
                details=Payloads(payloads=note),
                identity="stranger",
            )
        )
        may_end.set()
        view = await finished(client, id)
    assert view["state"] == "COMPENSATED"
    assert effects == ["charge", "refund"]


async def test_a_failure_that_is_no_last_word_tells_nothing_after_a_cancel(monkeypatch: Any) -> None:
    """After a cancel Temporal does not say which attempt a failure is of; that of the first one is repeated here."""
    monkeypatch.setattr(signed_answers, "is_believed_answer", lambda *_, **__: True)
    for kind in ("failed", "rejected"):
        for final in (False, True):
            outcome = Outcome(kind, attempt=1)
            assert (await after_cancel(outcome, final=final)).kind == (kind if final else "unknown")


async def after_cancel(outcome: Outcome, *, final: bool) -> Outcome:
    details = Payloads(payloads=[json_payload(encode_failure(outcome, 1))])
    type = "Rejected" if outcome.kind == "rejected" else "X"
    info = ApplicationFailureInfo(type=type, non_retryable=final, details=details)
    ended = ActivityFailureInfo(retry_state=RetryState.RETRY_STATE_CANCEL_REQUESTED)
    failure = Failure(activity_failure_info=ended, cause=Failure(message="no", application_failure_info=info))
    error = await DataConverter.default.decode_failure(failure)
    assert isinstance(error, FailureError)
    return signed_answers.outcome_of_failure(
        "pay", RawValue(json_payload({})).payload, error, "pay 1", 3, call="1.1", is_guarded=False
    )


RESTARTED = """
saga: restarted
steps:
  - {id: pay, uses: charge, compensate: refund, retry: {max_attempts: 3, initial_interval: 1h, max_interval: 1h}}
"""


async def reset_activity(client: Client, id: str) -> None:
    """Make Temporal count the attempts of `pay` from 1 again, as any client can: `temporal activity reset`."""
    await client.temporal.workflow_service.reset_activity(
        ResetActivityRequest(
            namespace=client.temporal.namespace,
            execution=WorkflowExecution(workflow_id=id),
            id="pay",
            identity="stranger",
        )
    )


async def reset_run(client: Client, id: str) -> None:
    """Make a new run of what was scheduled before, as any client can: `temporal workflow reset`."""
    handle = client.temporal.get_workflow_handle(id)
    history = await handle.fetch_history()
    completed = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    task = next(event.event_id for event in history.events if event.event_type == completed)
    await client.temporal.workflow_service.signal_workflow_execution(
        SignalWorkflowExecutionRequest(
            namespace=client.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=id),
            signal_name="another-task",
        )
    )

    async def later_task() -> int | None:
        events = (await handle.fetch_history()).events
        return next(
            (event.event_id for event in events if event.event_type == completed and event.event_id > task), None
        )

    await client.temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=id, run_id=(await handle.describe()).run_id),
            workflow_task_finish_event_id=await until(later_task),
            request_id=str(uuid.uuid4()),
            reason="a test",
        )
    )


@pytest.mark.parametrize("of", ["activity", "run"])
async def test_an_attempt_after_a_reset_is_not_the_first(tmp_path: Path, temporal: TemporalServer, of: str) -> None:
    effects: list[str] = []

    @action("charge")
    async def charge(step: Step) -> None:
        if effects:
            raise Rejected("no")
        effects.append("charge")
        raise ConnectionError("lost")

    @action("refund")
    async def refund(step: Step) -> None:
        effects.append("refund")

    project = make_project(tmp_path, {"restarted": RESTARTED}, [charge, refund], address=temporal.address)
    async with running_worker(project) as client:
        id = f"restarted-{uuid.uuid4()}"
        await client.start("restarted", {}, id=id)

        async def has_failed() -> bool:
            [step] = (await client.show(id))["steps"]
            return step.get("next_attempt_at") is not None

        await until(has_failed)
        await (reset_activity(client, id) if of == "activity" else reset_run(client, id))

        async def is_rejected() -> bool:
            [step] = (await client.show(id))["steps"]
            return step["state"] != "RUNNING" or (step["error"] or {}).get("type") == "Rejected"

        await until(is_rejected)
        if (await client.show(id))["state"] == "RUNNING":
            await client.cancel(id)  # the rejection is not believed, and its next attempt is due in an hour
        view = await finished(client, id)
    assert view["state"] == "COMPENSATED"
    assert effects == ["charge", "refund"]
