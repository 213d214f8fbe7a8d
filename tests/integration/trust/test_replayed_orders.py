"""An order that the project has signed for one run, which a client sends once more under another id."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowFailureError
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import ChildWorkflowError
from temporalio.worker import Worker

from saga_workers.client import Client
from saga_workers.temporal.run_history import start_of_run
from saga_workers.temporal.temporal_client import start_headers, to_header
from sagas.actions.registry import action
from sagas.protocol.batch_record import RECORD_QUERY
from sagas.protocol.payloads import (
    BATCH_PREFIX,
    BATCH_WORKFLOW,
    BULK_PREFIX,
    BULK_WORKFLOW,
    DEFINITION_HEADER,
    NOTIFICATION_WORKFLOW,
    OWNER_HEADER,
    SCHEDULE_WORKFLOW,
    SIGNATURE_HEADER,
)
from sagas.protocol.schedule_order import slot_text
from sagas.protocol.signed_content import message_content
from sagas.protocol.signed_start import sign_start
from sagas.text.exact_json import decode_json
from tests.helpers import eager_start
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.integration.bulk.conftest import Bank
from tests.integration.bulk.conftest import bank as bank
from tests.integration.bulk.conftest import bank_project as bank_project
from tests.integration.trust.conftest import Shop
from tests.integration.trust.test_definition_trust import FORGED, refusal
from tests.integration.trust.test_forged_histories import forged_continuation

TELLING = """
saga: telling
steps:
  - {id: note, uses: note, effect: none}
notify:
  - {when: [completed], uses: tell, with: {text: told}}
"""


@workflow.defn(sandboxed=False)
class Sender:
    """A workflow of a stranger, which sends an order as the parent of a run."""

    @workflow.run
    async def run(self, type: str, id: str, queue: str, order: Any) -> None:
        await workflow.execute_child_workflow(type, order, id=id, task_queue=queue)


async def test_a_notification_is_delivered_under_its_own_id_only(tmp_path: Any, temporal: TemporalServer) -> None:
    told: list[str] = []

    @action("note")
    async def note() -> None:
        pass

    @action("tell")
    async def tell(text: str) -> None:
        told.append(text)

    project = make_project(tmp_path, {"telling": TELLING}, [note, tell], address=temporal.address)
    queue, theirs = project.settings.temporal.task_queue, f"stranger-{uuid.uuid4()}"
    async with (
        running_worker(project) as client,
        Worker(client.temporal, task_queue=theirs, workflows=[Sender]),
    ):
        saga_id = (await client.start("telling", {})).id
        [row] = (await finished(client, saga_id))["notifications"]
        await client.temporal.get_workflow_handle(row["run"]).result()
        order = await order_of(client, row["run"])
        with start_headers({OWNER_HEADER: saga_id}):
            again = await client.temporal.start_workflow(
                NOTIFICATION_WORKFLOW, order, id=f"{saga_id}~notify-1-completed", task_queue=queue
            )
        assert "for this id" in await refusal(again)
        owner = f"telling-{uuid.uuid4()}"
        parent = await client.temporal.start_workflow(
            Sender.run, args=[NOTIFICATION_WORKFLOW, f"{owner}/x", queue, order], id=owner, task_queue=theirs
        )
        with pytest.raises(WorkflowFailureError) as failed:
            await parent.result()
        assert isinstance(failed.value.cause, ChildWorkflowError)
        assert "for this id" in str(failed.value.cause.cause)
        assert told == ["told"]
        with start_headers({OWNER_HEADER: saga_id}):
            await client.temporal.execute_workflow(NOTIFICATION_WORKFLOW, order, id=row["run"], task_queue=queue)
    assert told == ["told", "told"], "under its own id it is the order of `saga notify --again`"


async def order_of(client: Client, id: str) -> Any:
    """The input of a run, which everybody reads who reaches Temporal."""
    started = await start_of_run(client.temporal, id, "")
    assert started is not None
    return decode_json(started.input.payloads[0].data)


async def test_a_saga_leaves_its_bulk_workflow_under_its_own_id_only(bank: Bank) -> None:
    id, other, client = f"left-{uuid.uuid4()}", f"left-{uuid.uuid4()}", bank.client
    result = await bank.start("waiting", [{"id": id, "waits": True}])
    assert result["detached"] == [id]
    start = await start_of_run(client.temporal, id, "")
    assert start is not None
    queue = client.project.settings.temporal.task_queue
    await eager_start.start(
        client.temporal, "waiting", other, queue, start.input.payloads[0], dict(start.header.fields), eager=False
    )
    refused = await refusal(client.temporal.get_workflow_handle(other))
    assert refused == "this is not a saga that a bulk workflow of this project has started"
    await client.temporal.get_workflow_handle(id).terminate()


async def test_a_bulk_workflow_starts_under_its_own_id_only(shop: Shop) -> None:
    """A definition that the project has replaced comes back with no start that was signed for another workflow."""
    shop.project = shop.with_keys("k" * 32)
    header, starts = shop.header(FORGED), {"forged": {"text": "x"}}
    keys = shop.project.settings.signing_keys()
    signature = sign_start(keys, f"{BULK_PREFIX}signed", header.data, starts, at=time.time())
    order = {"saga": "own", "sagas": [["forged", {"text": "x"}, {}]]}
    async with running_worker(shop.project) as client:
        with start_headers({DEFINITION_HEADER: header, SIGNATURE_HEADER: to_header(signature)}):
            handle = await client.temporal.start_workflow(
                BULK_WORKFLOW,
                order,
                id=f"{BULK_PREFIX}{uuid.uuid4()}",
                task_queue=shop.project.settings.temporal.task_queue,
            )
        assert "its start not signed" in await refusal(handle)
    assert shop.said == []


async def test_a_state_is_continued_in_its_own_run_only(shop: Shop) -> None:
    shop.project = shop.with_keys("k" * 32)
    keys, queue = shop.project.settings.signing_keys(), shop.project.settings.temporal.task_queue
    id, other = f"own-{uuid.uuid4()}", f"own-{uuid.uuid4()}"
    async with running_worker(shop.project) as client:
        for recipient in (["own", other], ["waiting", id], ["own", id, "x"]):
            started = await eager_start.start(
                client.temporal, "own", id, queue, eager_start.json_payload({}), {}, eager=True
            )
            handed = forged_continuation(shop, id)
            to = [*recipient, started.run_id][:3]
            handed["signature"] = keys.sign("continuation", message_content(to, handed))
            command = eager_start.continue_as("own", queue, handed)
            await eager_start.complete_first_task(client.temporal, started, [command])
            handle = client.temporal.get_workflow_handle(id)
            assert await refusal(handle) == "this is not a state that a run of this project has handed on"
    assert shop.said == []


async def test_an_order_of_a_schedule_is_for_this_schedule_only(shop: Shop) -> None:
    shop.project = shop.with_keys("k" * 32)
    keys, queue = shop.project.settings.signing_keys(), shop.project.settings.temporal.task_queue
    at = datetime(2026, 1, 1, tzinfo=UTC)
    key = SearchAttributeKey.for_datetime("TemporalScheduledStartTime")
    signed, other = f"signed-{uuid.uuid4()}", f"other-{uuid.uuid4()}"
    order: dict[str, Any] = {"schedule": signed, "saga": "own", "times": {}}
    order["signature"] = keys.sign("schedule", message_content([signed], order))
    renamed = {**order, "schedule": other}
    async with running_worker(shop.project) as client:
        for sent, refused in ((order, "started by its schedule only"), (renamed, "is not signed with a key")):
            handle = await client.temporal.start_workflow(
                SCHEDULE_WORKFLOW,
                sent,
                id=f"{other}-{slot_text(at)}",
                task_queue=queue,
                search_attributes=TypedSearchAttributes([SearchAttributePair(key, at)]),
            )
            assert refused in await refusal(handle)
    assert shop.said == []


async def test_the_record_of_a_batch_starts_nothing_under_any_id(shop: Shop) -> None:
    """The record of a batch is not signed, as it gives no order: it only counts what its command has started."""
    queue, batch = shop.project.settings.temporal.task_queue, f"replayed-{uuid.uuid4()}"
    record = {"saga": "own", "state": "STARTING", "total": 1, "bulk": False}
    async with running_worker(shop.project) as client:
        handle = await client.temporal.start_workflow(
            BATCH_WORKFLOW, record, id=f"{BATCH_PREFIX}{batch}", task_queue=queue
        )

        assert (await handle.query(RECORD_QUERY))["total"] == 1
        await handle.terminate()
    assert shop.said == []
