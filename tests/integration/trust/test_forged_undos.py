"""A stranger starts a run with the id of the undo of a saga, and resets that saga: no effect is taken for undone."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from saga_workers.client import Client
from saga_workers.location.accepted_undos import is_accepted_undo
from saga_workers.stuck.continuation import continue_saga
from saga_workers.temporal.temporal_client import start_headers
from saga_workers.temporal.temporal_runs import describe_run
from sagas.protocol.payloads import LOAD_ACTIVITY, OWNER_HEADER, UNDO_SUFFIX
from sagas.protocol.signed_content import message_content
from tests.helpers import eager_start
from tests.helpers.eager_start import json_payload
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.run_changes import delete_run
from tests.helpers.waiting import until
from tests.integration.trust.conftest import Shop
from tests.integration.trust.test_replayed_starts import reset_after_debit, waits
from tests.integration.trust.test_resets_after_undos import REASON, approve, closed, completed, reason

TWICE = """
saga: twice
steps:
  - {id: debit, uses: say, with: {text: debit}, compensate: {uses: say, with: {text: refund}}}
  - {id: approval, uses: wait, with: {signal: approved}}
  - {id: credit, uses: say, with: {text: credit}, compensate: {uses: say, with: {text: withdraw}}}
  - {id: release, uses: wait, with: {signal: released}}
"""


@pytest.fixture
async def client(shop: Shop) -> AsyncIterator[Client]:
    (shop.project.settings.definitions[0] / "twice.saga.yaml").write_text(TWICE, encoding="utf-8")
    shop.project = shop.with_keys("k" * 32)
    async with running_worker(shop.project) as client:
        yield client


async def forge_undo(client: Client, id: str, how: str, saga: str = "moving") -> None:
    """Start a run as any client can. ``how``: it begins later, the stranger keeps it, or has closed it."""
    queue, undo_id = client.project.settings.temporal.task_queue, id + UNDO_SUFFIX
    if how == "later":
        await client.temporal.start_workflow(saga, {}, id=undo_id, task_queue=queue, start_delay=timedelta(hours=100))
        return
    started = await eager_start.start(client.temporal, saga, undo_id, queue, json_payload({}), {}, eager=True)
    if how == "closed":
        await eager_start.complete_first_task(client.temporal, started, [eager_start.complete()])
        return
    await eager_start.KeptRun(client.temporal, undo_id, queue).complete_first_task(started)
    if how == "terminated":
        await client.temporal.get_workflow_handle(undo_id).terminate()


async def send_undo(client: Client, id: str, order: object, owner: str = "") -> str:
    """Start the undo of a saga with this order; returns why it has failed."""
    with start_headers({OWNER_HEADER: owner or id}):
        undo = await client.temporal.start_workflow(
            "moving", order, id=id + UNDO_SUFFIX, task_queue=client.project.settings.temporal.task_queue
        )
    with pytest.raises(WorkflowFailureError) as caught:
        await undo.result()
    return str(caught.value.cause)


@pytest.mark.parametrize("signed", ["not at all", "for another saga", "with another reason"])
async def test_an_order_to_undo_counts_only_if_it_is_signed(shop: Shop, client: Client, signed: str) -> None:
    id = await completed(client, f"forged-{uuid.uuid4()}")
    said = list(shop.said)
    order: dict[str, Any] = {"reason": "a lie", "who": "anna"}
    if signed != "not at all":
        undone = ("another" if "saga" in signed else id) + UNDO_SUFFIX
        order["signature"] = client.project.settings.signing_keys().sign("undo", message_content([undone], order))
    if "reason" in signed:
        order["reason"] = "another lie"
    assert "an undo counts only if it is signed" in await send_undo(client, id, order)
    assert (shop.said, (await client.show(id))["state"]) == (said, "COMPLETED")
    await client.undo(id, reason="a test", who="anna")
    assert (await finished(client, id))["reason"]["details"] == {"who": "anna"}, "the signature proves who it was"


async def order_of(client: Client, undo_id: str) -> Any:
    """The order with which this undo has started, which anybody reads in its history."""
    history = await client.temporal.get_workflow_handle(undo_id).fetch_history()
    started = history.events[0].workflow_execution_started_event_attributes
    (order,) = await client.temporal.data_converter.decode(started.input.payloads)
    return order


@pytest.mark.parametrize("later", ["another generation", "another run of the same generation"])
async def test_an_order_to_undo_does_not_undo_a_later_start(shop: Shop, client: Client, later: str) -> None:
    id = await completed(client, f"again-{uuid.uuid4()}")
    await client.undo(id, reason="a test", who="anna")
    assert (await finished(client, id))["state"] == "COMPENSATED"
    order = await order_of(client, id + UNDO_SUFFIX)
    if later != "another generation":
        await delete_run(client.temporal, id)
        await delete_run(client.temporal, id + UNDO_SUFFIX)
    await completed(client, id, again=later == "another generation")
    said = list(shop.said)
    assert "started again since" in await send_undo(client, id, order)
    assert (shop.said, (await client.show(id))["state"]) == (said, "COMPLETED")


async def test_an_order_to_undo_a_terminated_run_does_not_undo_a_later_one(shop: Shop, client: Client) -> None:
    id = f"terminated-{uuid.uuid4()}"
    await client.start("moving", {}, id=id)
    await until(lambda: waits(client, id))
    await client.temporal.get_workflow_handle(id).terminate()
    await continue_saga(client.locator, id, who="anna")
    assert (await finished(client, id))["state"] == "COMPENSATED"
    order = await order_of(client, id + UNDO_SUFFIX)
    await completed(client, id, again=True)
    said = list(shop.said)
    assert "not its last run any more" in await send_undo(client, id, order)
    assert (shop.said, (await client.show(id))["state"]) == (said, "COMPLETED")


async def test_the_order_of_a_parent_to_undo_counts_in_its_own_run_only(shop: Shop, client: Client) -> None:
    id = f"outer-{uuid.uuid4()}"
    nested = f"{id}/move"

    async def complete() -> None:
        await client.start("outer", {}, id=id)
        await until(lambda: shop.said.count("debit") > shop.said.count("refund"))
        await approve(client, nested)
        assert (await finished(client, id))["state"] == "COMPLETED"

    await complete()
    await client.undo(id, reason="a test", who="anna")
    assert (await finished(client, id))["state"] == "COMPENSATED"
    order = await order_of(client, nested + UNDO_SUFFIX)
    for ended in (id, nested):
        await delete_run(client.temporal, ended)
        await delete_run(client.temporal, ended + UNDO_SUFFIX)
    await complete()
    said = list(shop.said)
    assert "an undo counts only if it is signed" in await send_undo(client, nested, order, owner=id)
    assert shop.said == said


@pytest.mark.sampled(turns="how")
@pytest.mark.parametrize("how", ["later", "closed", "kept", "terminated"])
async def test_a_reset_saga_undoes_all_that_it_has_done(shop: Shop, client: Client, how: str) -> None:
    id = f"forged-{uuid.uuid4()}"
    await client.start("twice", {}, id=id)
    await until(lambda: waits(client, id))
    await approve(client, id)
    await until(lambda: "credit" in shop.said)
    await forge_undo(client, id, how, "twice")
    run_id = await reset_after_debit(client, id)
    await client.cancel(id, reason="a test", who="anna")
    assert await closed(client, id, run_id) is WorkflowExecutionStatus.FAILED
    assert await reason(client, id) == {"kind": "cancelled", "message": "a test"}
    assert shop.said == ["debit", "credit", "withdraw", "refund"]


async def test_what_an_undo_has_left_that_was_terminated_is_undone(shop: Shop, client: Client) -> None:
    id = await completed(client, f"ended-{uuid.uuid4()}")
    shop.may_answer.clear()
    await client.undo(id, reason="a test", who="anna")
    await until(lambda: "withdraw" in shop.said)
    await client.temporal.get_workflow_handle(id + UNDO_SUFFIX).terminate()
    shop.may_answer.set()
    run_id = await reset_after_debit(client, id)
    assert await closed(client, id, run_id) is WorkflowExecutionStatus.FAILED
    assert await reason(client, id) == REASON
    assert shop.said == ["debit", "credit", "withdraw", "withdraw", "refund"], "by the same keys"


async def test_the_answer_to_an_earlier_undo_is_none_to_a_later_run(shop: Shop, client: Client) -> None:
    """A stranger repeats the signed call of `saga.load` and its signed answer, which anybody reads in the history."""
    id = await completed(client, f"undone-{uuid.uuid4()}")
    await client.undo(id, reason="a test", who="anna")
    assert (await finished(client, id))["state"] == "COMPENSATED"
    undo_id, keys = id + UNDO_SUFFIX, shop.project.settings.signing_keys()
    handle = client.temporal.get_workflow_handle(undo_id)
    undo = await handle.describe()
    calls = {
        event.event_id: event.activity_task_scheduled_event_attributes
        async for event in handle.fetch_history_events()
        if event.activity_task_scheduled_event_attributes.activity_type.name == LOAD_ACTIVITY
    }
    [(call, answer)] = [
        (calls[end.scheduled_event_id], end.result)
        async for event in handle.fetch_history_events()
        if (end := event.activity_task_completed_event_attributes).scheduled_event_id in calls
    ]
    queue, theirs = shop.project.settings.temporal.task_queue, f"stranger-{uuid.uuid4()}"
    started = await eager_start.start(client.temporal, "moving", undo_id, queue, json_payload({}), {}, eager=True)
    kept = eager_start.KeptRun(client.temporal, undo_id, queue)
    await kept.complete_first_task(started, [eager_start.call_again(call, theirs)])
    await eager_start.answer_call(client.temporal, theirs, answer)
    for run_id, counts in ((undo.run_id, True), (started.run_id, False)):
        described = await describe_run(client.temporal, undo_id, run_id)
        assert described is not None
        assert await is_accepted_undo(client.temporal, described.run, keys) is counts
    await client.temporal.get_workflow_handle(undo_id).terminate()


@pytest.mark.sampled(turns="how")
@pytest.mark.parametrize("how", ["later", "closed", "kept"])
async def test_a_later_run_hides_no_undo(shop: Shop, client: Client, how: str) -> None:
    id = await completed(client, f"undone-{uuid.uuid4()}")
    await client.undo(id, reason="a test", who="anna")
    assert (await finished(client, id))["state"] == "COMPENSATED"
    await forge_undo(client, id, how)
    run_id = await reset_after_debit(client, id)
    await approve(client, id)
    assert await closed(client, id, run_id) is WorkflowExecutionStatus.FAILED
    assert await reason(client, id) == REASON
    assert shop.said == ["debit", "credit", "withdraw", "refund", "refund"]
