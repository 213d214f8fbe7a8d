"""Histories, states and answers of a stranger, who polls task queues and completes tasks and activities of others."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
import zlib
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payloads
from temporalio.api.workflowservice.v1 import RespondActivityTaskCompletedByIdRequest
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from saga_workers.client import Client
from saga_workers.temporal.saga_input import first_input
from saga_workers.temporal.temporal_client import start_headers, to_header
from saga_workers.temporal.temporal_runs import describe_run
from sagas.definition.loader import parse_text
from sagas.errors import RefusedError
from sagas.expressions.limits import WorkMeter
from sagas.machine.machine import Machine
from sagas.protocol.messages import Started
from sagas.protocol.payloads import (
    DEFINITION_HEADER,
    DETACHED_HEADER,
    LOAD_ACTIVITY,
    OWNER_HEADER,
    VERIFY_ACTIVITY,
    pack_state,
)
from sagas.protocol.signed_content import message_content
from tests.helpers import eager_start
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.waiting import until
from tests.integration.trust.conftest import OWN, WAITING, Shop
from tests.integration.trust.test_definition_trust import refusal

FORGED = OWN.replace("${{ input.text }}", "forged")
FORGED_WAITING = WAITING.replace("${{ vars.text }}", "forged")


def forged_state(shop: Shop, id: str, text: str = FORGED) -> str:
    """The state of a machine that is about to call the action."""
    definition, _ = parse_text(text, "forged.saga.yaml", shop.project.context)
    assert definition is not None
    machine = Machine(definition, {"text": "x"}, id)
    machine.begin_task(WorkMeter())
    machine.next(Started(at=time.time()))
    return pack_state(machine.snapshot())


def forged_continuation(shop: Shop, id: str) -> dict[str, Any]:
    state = {"_saga": "sagas/1", "machine": forged_state(shop, id), "attributes": []}
    return {**state, "native_cancel": False, "recorded": False}


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize("signature", [None, {"key": "ours", "hmac": "0" * 64}, 5])
async def test_a_state_that_a_stranger_continues_with_is_refused(shop: Shop, signature: Any) -> None:
    queue, id = shop.project.settings.temporal.task_queue, f"forged-{uuid.uuid4()}"
    if signature == {"key": "ours", "hmac": "0" * 64}:
        signature = {**signature, "key": shop.project.settings.signing_keys().ids[0]}
    async with running_worker(shop.project) as client:
        started = await eager_start.start(
            client.temporal, "own", id, queue, eager_start.json_payload({}), {}, eager=True
        )
        forged = {**forged_continuation(shop, id), "signature": signature}
        await eager_start.complete_first_task(client.temporal, started, [eager_start.continue_as("own", queue, forged)])
        handle = client.temporal.get_workflow_handle(id)
        assert await refusal(handle) == "this is not a state that a run of this project has handed on"
    assert shop.said == []


async def test_a_first_task_of_a_stranger_is_no_trust(shop: Shop) -> None:
    """A replay cannot ask who has completed a task, so the signature of the start is verified again."""
    queue, id = shop.project.settings.temporal.task_queue, f"forged-{uuid.uuid4()}"
    async with running_worker(shop.project) as client:
        headers = {DEFINITION_HEADER: shop.header(FORGED_WAITING)}
        started = await eager_start.start(
            client.temporal, "waiting", id, queue, eager_start.json_payload({}), headers, eager=True
        )
        await eager_start.complete_first_task(client.temporal, started)
        handle = client.temporal.get_workflow_handle(id)
        await handle.signal("approved", {})
        await until(lambda: was_sent_back(client, id))
        assert shop.said == []
        await handle.terminate()


async def was_sent_back(client: Client, id: str) -> bool:
    steps = (await client.show(id))["steps"]
    return any((step["error"] or {}).get("type") == "UnsignedCall" for step in steps)


async def answer(client: Client, handle: Any, activity: str, value: Any) -> None:
    """Complete an activity by its id as soon as it is scheduled, as any client can."""

    async def is_answered() -> bool:
        try:
            await client.temporal.workflow_service.respond_activity_task_completed_by_id(
                RespondActivityTaskCompletedByIdRequest(
                    namespace=client.temporal.namespace,
                    workflow_id=handle.id,
                    activity_id=activity,
                    result=Payloads(payloads=[eager_start.json_payload(value)]),
                    identity="stranger",
                )
            )
        except RPCError:
            return False
        return True

    await until(is_answered)


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("activity", [VERIFY_ACTIVITY, LOAD_ACTIVITY])
async def test_the_answer_of_a_stranger_is_ignored(shop: Shop, activity: str) -> None:
    """The engine asks again, until a worker of the project answers."""
    async with running_worker(shop.project, no_remote_activities=True) as client:
        forged = {**json.loads(shop.header(FORGED).data), "input": {"text": "x"}}
        if activity == VERIFY_ACTIVITY:
            handle = await shop.start(client, "own", {"text": "x"}, shop.header(FORGED))
            await answer(client, handle, activity, {})
        else:
            queue = shop.project.settings.temporal.task_queue
            handle = await client.temporal.start_workflow(
                "own", {"text": "x"}, id=f"named-{uuid.uuid4()}", task_queue=queue
            )
            await answer(client, handle, activity, forged)
        await asyncio.sleep(1)
    async with running_worker(shop.project) as client:
        if activity == VERIFY_ACTIVITY:
            assert "its start not signed" in await refusal(client.temporal.get_workflow_handle(handle.id))
        else:
            assert (await finished(client, handle.id))["state"] == "COMPLETED"
    assert shop.said == ([] if activity == VERIFY_ACTIVITY else ["x"])


async def test_the_answer_of_a_stranger_is_not_the_input_of_a_saga(shop: Shop) -> None:
    queue, id = shop.project.settings.temporal.task_queue, f"named-{uuid.uuid4()}"
    async with running_worker(shop.project, no_remote_activities=True) as client:
        handle = await client.temporal.start_workflow("own", {"text": "x"}, id=id, task_queue=queue)
        forged = {**json.loads(shop.header(FORGED).data), "input": {"text": "y"}}
        await answer(client, handle, LOAD_ACTIVITY, forged)
        assert not (await client.start("own", {"text": "x"}, id=id)).started
        with pytest.raises(RefusedError, match="has been started with another input"):
            await client.start("own", {"text": "y"}, id=id)
        await handle.terminate("the end of the test")


async def test_the_state_that_a_stranger_starts_with_is_not_unpacked(shop: Shop) -> None:
    """A few bytes of it may stand for many, and it may be nested without end."""
    queue, id = shop.project.settings.temporal.task_queue, f"detached-{uuid.uuid4()}"
    packed = base64.b85encode(zlib.compress(b'{"input":' + b"[" * 5_000 + b"]" * 5_000 + b"}")).decode()
    async with await Client.connect(shop.project) as client:
        with start_headers({DETACHED_HEADER: {"key": "x", "hmac": "y"}}):
            handle = await client.temporal.start_workflow("own", {"machine": packed}, id=id, task_queue=queue)
        described = await describe_run(client.temporal, id)
        assert described is not None
        assert await first_input(client.temporal, described, client.locator.keys) == {"machine": packed}
        assert await first_input(client.temporal, described, None) == {"machine": packed}
        await handle.terminate("the end of the test")


async def test_a_state_with_too_many_values_is_not_unpacked(shop: Shop) -> None:
    """A project that accepts anything takes a state without a signature."""
    project = shop.with_keys("a" * 32, accept="any")
    queue, id = project.settings.temporal.task_queue, f"detached-{uuid.uuid4()}"
    definition, _ = parse_text(FORGED, "forged.saga.yaml", shop.project.context)
    assert definition is not None
    machine = Machine(definition, {"text": [0] * 600_000}, id)
    value = {"machine": pack_state(machine.snapshot()), "attributes": [], "claimed_at": None, "bulk_id": "bulk-x"}
    async with running_worker(project) as client:
        with start_headers({DETACHED_HEADER: {"key": "x", "hmac": "y"}}):
            handle = await client.temporal.start_workflow("own", value, id=id, task_queue=queue)
        assert "this is not a saga that a bulk workflow of this project has started" in await refusal(handle)
        described = await describe_run(client.temporal, id)
        assert described is not None
        assert await first_input(client.temporal, described, client.locator.keys) == value
    assert shop.said == []


STATES: dict[str, str] = {}


@workflow.defn(name="own", sandboxed=False)
class Foreign:
    """A workflow of another worker, which claims to be a saga that has ended in one of the :data:`STATES`."""

    @workflow.run
    async def run(self, input: Any = None) -> dict[str, Any]:
        return {}

    @workflow.query(name="machine")
    def machine(self, nonce: str = "") -> Any:
        return {"machine": STATES[workflow.info().workflow_id], "signature": {"key": "x", "hmac": "0" * 64}}


async def test_the_state_of_a_stranger_is_not_undone(shop: Shop) -> None:
    id, theirs = f"forged-{uuid.uuid4()}", f"stranger-{uuid.uuid4()}"
    async with running_worker(shop.project) as client:
        runner = UnsandboxedWorkflowRunner()
        STATES[id] = forged_state(shop, id)
        async with Worker(client.temporal, task_queue=theirs, workflows=[Foreign], workflow_runner=runner):
            await (await client.temporal.start_workflow("own", {}, id=id, task_queue=theirs)).result()
            order = {"who": "anna", "reason": "it looks completed"}
            keys = shop.project.settings.signing_keys()
            order |= {"signature": keys.sign("undo", message_content([f"{id}~undo"], order))}
            with start_headers({OWNER_HEADER: to_header(id)}):
                undo = await client.temporal.start_workflow(
                    "own",
                    order,
                    id=f"{id}~undo",
                    task_queue=shop.project.settings.temporal.task_queue,
                )
            assert "is not signed with a key of this project" in await refusal(undo)
    assert shop.said == []
