"""A saga that has ended, whose start or whose history is used once more."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import psycopg
import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, ResetReapplyType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from saga_workers.client import Client
from saga_workers.start.start_requests import BulkRow
from saga_workers.stuck.continuation import continue_saga
from sagas.protocol.payloads import RESET_ACTIVITY
from tests.helpers import eager_start
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.waiting import until
from tests.integration.bulk.conftest import Bank
from tests.integration.bulk.conftest import bank as bank
from tests.integration.bulk.conftest import bank_project as bank_project
from tests.integration.trust.conftest import Shop
from tests.integration.trust.test_definition_trust import refusal

COMPLETED_TASK = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
COMPLETED_CALL = EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED


async def reset_after_debit(client: Client, id: str, calls: int = 1) -> str:
    """Reset the run to the task after its first calls, without the messages that came later; gives the new run."""
    handle = client.temporal.get_workflow_handle(id)
    done, task = 0, 0
    async for event in handle.fetch_history_events():
        done += event.event_type == COMPLETED_CALL
        if done >= calls and event.event_type == COMPLETED_TASK:
            task = event.event_id
            break
    answer = await client.temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=id, run_id=(await handle.describe()).run_id),
            workflow_task_finish_event_id=task,
            request_id=str(uuid.uuid4()),
            reason="a test",
            reset_reapply_type=ResetReapplyType.RESET_REAPPLY_TYPE_NONE,
        )
    )
    return answer.run_id


async def waits(client: Client, id: str) -> bool:
    return any((step["id"], step["state"]) == ("approval", "RUNNING") for step in (await client.show(id))["steps"])


async def test_a_reset_of_an_undone_saga_does_nothing_new(shop: Shop) -> None:
    async with running_worker(shop.project) as client:
        id = (await client.start("moving", {})).id
        await until(lambda: waits(client, id))
        await client.cancel(id, reason="a test", who="anna")
        undone = await finished(client, id)
        assert (undone["state"], shop.said) == ("COMPENSATED", ["debit", "refund"])
        await reset_after_debit(client, id)
        await client.temporal.get_workflow_handle(id).signal("approved", {})
        story = await finished(client, id)
        assert (story["state"], story["reason"]) == ("COMPENSATED", undone["reason"])
    assert "credit" not in shop.said


async def test_a_reset_of_an_open_saga_goes_on(shop: Shop) -> None:
    async with running_worker(shop.project) as client:
        id = (await client.start("moving", {})).id
        await until(lambda: waits(client, id))
        await reset_after_debit(client, id)
        await client.temporal.get_workflow_handle(id).signal("approved", {})
        assert (await finished(client, id))["state"] == "COMPLETED"
    assert shop.said == ["debit", "credit"]


PATIENT = """
saga: patient
steps:
  - {id: approval, uses: wait, with: {signal: approved}}
  - {id: credit, uses: say, with: {text: credit}, compensate: {uses: say, with: {text: withdraw}}}
"""


@pytest.mark.sampled
@pytest.mark.parametrize("saga", ["patient", "moving"])
@pytest.mark.parametrize("is_undone", [True, False])
async def test_a_reset_to_the_very_first_task_asks_what_the_saga_had_done(
    shop: Shop, saga: str, is_undone: bool
) -> None:
    """Temporal tells of such a reset together with the start, before the run can ask for anything."""
    (shop.project.settings.definitions[0] / "patient.saga.yaml").write_text(PATIENT, encoding="utf-8")
    shop.project = shop.with_keys("k" * 32)
    async with running_worker(shop.project) as client:
        id = (await client.start(saga, {})).id
        await until(lambda: waits(client, id))
        before = list(shop.said)
        if is_undone:
            await client.cancel(id, reason="a test", who="anna")
            assert (await finished(client, id))["state"] == "COMPENSATED"
            before = list(shop.said)
        await reset_after_debit(client, id, 0)
        handle = client.temporal.get_workflow_handle(id)
        await handle.signal("approved", {})
        story = await finished(client, id)
        history = await handle.fetch_history()
        asked = [event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events]
        assert asked.count(RESET_ACTIVITY) == 1
        if is_undone:
            assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "cancelled")
            assert shop.said == before
        else:
            assert story["state"] == "COMPLETED"
            assert shop.said[len(before) :] == [*before, "credit"], "the same calls, with the same keys"


async def first_event(client: Client, id: str) -> Any:
    async for event in client.temporal.get_workflow_handle(id).fetch_history_events():
        return event.workflow_execution_started_event_attributes


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("has_begun", [True, False])
async def test_the_start_of_a_saga_that_left_its_bulk_workflow_counts_once(
    bank: Bank, has_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_begun:
        monkeypatch.setattr("sagas.bulk.bulk_machine.why_no_member", lambda _: "a test")
    id, client = f"left-{uuid.uuid4()}", bank.client
    result = await bank.start("waiting", [{"id": id, "waits": True}])
    assert result["detached"] == [id]
    await client.cancel(id, reason="a test", who="anna")
    assert (await finished(client, id))["state"] == "COMPENSATED"
    assert bank.query("select count(*) from note") == [(0,)]
    start = await first_event(client, id)
    headers = dict(start.header.fields)
    queue = client.project.settings.temporal.task_queue
    again = await eager_start.start(
        client.temporal, "waiting", id, queue, start.input.payloads[0], headers, eager=False
    )
    handle = client.temporal.get_workflow_handle(id, run_id=again.run_id)
    async with asyncio.timeout(60):
        assert "has left its bulk workflow before" in await refusal(handle)
    assert bank.query("select count(*) from note") == [(0,)]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("calls", [2, 0])
async def test_a_reset_of_a_bulk_workflow_is_refused(bank: Bank, calls: int) -> None:
    """The saga was undone, and would go on with its second step, or begin again."""
    id, client = f"reset-{uuid.uuid4()}", bank.client
    starter = await client.starter("resting")
    rows = [BulkRow(id, starter.make_request({"id": id, "rest": "1s", "text": "refused"}))]
    bulk = await starter.start_bulk(rows)
    await bulk.result()
    assert bank.states() == {id: "COMPENSATED"}
    run_id = await reset_after_debit(client, bulk.id, calls=calls)
    handle = client.temporal.get_workflow_handle(bulk.id, run_id=run_id)
    async with asyncio.timeout(60):
        assert "a bulk workflow cannot be reset" in await refusal(handle)
    assert bank.query("select count(*) from saga_guard where step = 'second'") == [(0,)]
    assert bank.states() == {id: "COMPENSATED"}


async def test_the_sagas_of_a_bulk_workflow_that_was_reset_are_undone_where_they_stood(bank: Bank) -> None:
    """The run of the reset knows them as they were before their first effects."""
    bank.open_accounts(3)
    id, client = f"t-{uuid.uuid4()}", bank.client
    starter = await client.starter("transfer")
    request = starter.make_request({"id": id, "from": "a1", "to": "a2", "amount": 7})
    async with await psycopg.AsyncConnection.connect(bank.url) as blocking:
        await blocking.execute("lock table note in share mode")
        bulk = await starter.start_bulk([BulkRow(id, request)])
        await until(lambda: bank.balances() == {"a1": 93, "a2": 107, "a3": 100})
        run_id = await reset_after_debit(client, bulk.id)
        async with asyncio.timeout(60):
            assert "a bulk workflow cannot be reset" in await refusal(
                client.temporal.get_workflow_handle(bulk.id, run_id=run_id)
            )
    view = await client.view(id)
    assert (view.state, [step.state for step in view.steps[:2]]) == ("TERMINATED", ["DONE", "DONE"])
    assert await continue_saga(client.locator, id, "anna") == "undone; it is COMPENSATED"
    assert bank.balances() == {"a1": 100, "a2": 100, "a3": 100}
    rows = "select state, labels from saga_run where saga_id = %s"
    assert await until(lambda: bank.query(rows, id)) == [("COMPENSATED", {"from": "a1"})]
    assert bank.query("select saga_id from saga_claim") == []
