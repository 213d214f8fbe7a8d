"""Clients of Temporal can make a worker run the project's own definitions, and nothing else."""

from __future__ import annotations

import asyncio
import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import (
    ActivityFailureError,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowUpdateFailedError,
)
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, ChildWorkflowError
from temporalio.worker import Worker

from saga_workers.client import Client
from saga_workers.input_limits import MAX_TASK_VALUES
from saga_workers.temporal.temporal_client import start_headers, to_header
from saga_workers.worker.worker_trust import WorkerTrust
from sagas.definition.digest import digest_of
from sagas.definition.loader import parse_text
from sagas.definition.snapshot import to_snapshot
from sagas.input_limits import MAX_TASK_BYTES
from sagas.project import Project
from sagas.protocol.payloads import (
    BATCH_PREFIX,
    BATCH_WORKFLOW,
    BULK_PREFIX,
    BULK_WORKFLOW,
    DEFINITION_HEADER,
    GENERATION_HEADER,
    NOTIFICATION_WORKFLOW,
    OWNER_HEADER,
    RESUMED_HEADER,
    SIGNATURE_HEADER,
)
from sagas.protocol.signed_start import sign_start
from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES
from sagas.settings.signing_keys import SigningKeys
from sagas.text.exact_json import decode_json
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.waiting import LIMIT, until
from tests.integration.trust.conftest import OWN, STUCK, WAITING, Shop

OUTER = """
saga: outer
input: {{type: object, required: [name, input], properties: {{name: {name}, input: {{}}}}}}
steps:
  - {{id: child, uses: saga, with: {{name: "${{{{ input.name }}}}", input: "${{{{ input.input }}}}"}}}}
"""

KEYS = ("a" * 32, "b" * 32)


async def refusal(handle: Any) -> str:
    with pytest.raises(WorkflowFailureError) as failed:
        await asyncio.wait_for(handle.result(), LIMIT)
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "SagaRefused"
    return failed.value.cause.message


FORGED = OWN.replace("${{ input.text }}", "forged")


async def test_a_definition_from_a_stranger_is_refused(shop: Shop) -> None:
    async with running_worker(shop.project) as client:
        handle = await shop.start(client, "own", {"text": "x"}, shop.header(FORGED))
        assert "is not one of this worker's project, and its start not signed" in await refusal(handle)
        assert shop.said == []
        story = await client.show(handle.id)
        assert (story["state"], story["reason"]["type"]) == ("FAILED", "SagaRefused")
        # The history replays: a query of a closed run is answered by a replay.
        assert (await handle.query("saga"))["id"] == handle.id


@pytest.mark.sampled(keep=3)
@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"definition": 1}',
        b'{"definition": {"saga": "own"}}',
        b"\xff",
        b"[" * 5000,
    ],
)
async def test_a_malformed_header_is_refused(shop: Shop, header: bytes) -> None:
    payload = shop.header()
    payload.data = header
    async with running_worker(shop.with_keys(KEYS[0], accept="any")) as client:
        assert "definition" in await refusal(await shop.start(client, "own", {"text": "x"}, payload))


async def test_a_definition_of_the_project_needs_no_signature(shop: Shop) -> None:
    async with running_worker(shop.project) as client:
        await (await shop.start(client, "own", {"text": "x"}, shop.header())).result()
    assert shop.said == ["x"]


async def test_other_variables_are_refused(shop: Shop) -> None:
    async with running_worker(shop.project) as client:
        handle = await shop.start(client, "own", {"text": "x"}, shop.header(vars={"text": "forged"}))
        assert "its start not signed" in await refusal(handle)


async def test_an_edited_definition_runs_while_the_worker_stays(shop: Shop) -> None:
    async with running_worker(shop.project) as client:
        for number in range(3):
            text = FORGED.replace("forged", f"edited {number}")
            [file] = [path for path in shop.project.settings.definitions[0].iterdir() if path.name == "own.saga.yaml"]
            file.write_text(text)
            edited = Project(shop.project.settings, shop.project.actions)
            run = await Client(client.temporal, edited).start("own", {"text": "x"})  # signed with the key file
            await run.result()
            await (await shop.start(client, "own", {"text": "x"}, shop.header(text))).result()  # found in the files
    assert shop.said == [f"edited {number}" for number in range(3) for _ in range(2)]


async def test_a_replaced_definition_needs_a_signature(shop: Shop) -> None:
    """The header of a replaced definition is in the histories of earlier starts."""
    async with running_worker(shop.project) as client:
        await (await shop.start(client, "own", {"text": "x"}, shop.header())).result()
        file = shop.project.settings.definitions[0] / "own.saga.yaml"
        file.write_text(FORGED.replace("forged", "new"))
        await (await shop.start(client, "own", {"text": "y"}, shop.header(file.read_text()))).result()
        handle = await shop.start(client, "own", {"text": "z"}, shop.header())
        assert "its start not signed" in await refusal(handle)
        keys = shop.project.settings.signing_keys()
        await (await shop.start(client, "own", {"text": "w"}, shop.header(), keys=keys)).result()
    assert shop.said == ["x", "new", "w"]


async def test_a_replaced_definition_starts_nothing_new(shop: Shop) -> None:
    """Neither with a signature nor as a further generation, in a project that accepts its own definitions only."""
    keys, replaced, id = SigningKeys((KEYS[0],)), shop.header(FORGED), f"own-{uuid.uuid4()}"
    parsed, _ = parse_text(FORGED, "forged", shop.project.context)
    assert parsed is not None
    async with running_worker(shop.with_keys(KEYS[0], accept="project")) as client:
        await (await shop.start(client, "own", {"text": "x"}, shop.header(), keys=keys)).result()
        refused = await refusal(await shop.start(client, "own", {"text": "x"}, replaced, keys=keys, id=id))
        assert "is not one of this worker's project, and not an earlier one that may start" in refused
        earlier = {GENERATION_HEADER: 5}
        signature = sign_start(keys, id, replaced.data, {id: {"text": "x"}}, earlier, at=time.time())
        headers = {DEFINITION_HEADER: replaced, SIGNATURE_HEADER: to_header(signature), **earlier}
        with start_headers(headers):
            queue = shop.project.settings.temporal.task_queue
            again = await client.temporal.start_workflow("own", {"text": "x"}, id=id, task_queue=queue)
        assert "not an earlier one that may start" in await refusal(again)
        assert shop.said == ["x"]
    resumed, starts = {RESUMED_HEADER: {"who": "ada"}}, {id: {"text": "x"}}
    signature = sign_start(keys, id, replaced.data, starts, resumed, at=time.time())
    trust = WorkerTrust(shop.with_keys(KEYS[0], accept="project"))
    is_trusted = trust.trusts_start("own", id, starts, replaced.data, signature, time.time(), resumed)
    assert is_trusted, "what it continues is not new"
    async with running_worker(shop.with_keys(KEYS[0], accept="project", earlier=[digest_of(parsed)])) as client:
        await (await shop.start(client, "own", {"text": "x"}, replaced, keys=keys)).result()
        assert "its start not signed" in await refusal(await shop.start(client, "own", {"text": "x"}, replaced))
    assert shop.said == ["x", "forged"]


async def test_a_new_nested_saga_runs_while_the_worker_stays(shop: Shop) -> None:
    folder = shop.project.settings.definitions[0]
    async with running_worker(shop.with_keys(KEYS[0])) as client:
        for name, text in (("newchild", OWN), ("newbroken", OWN.replace("uses:", "used:"))):
            (folder / f"{name}.saga.yaml").write_text(text.replace("saga: own", f"saga: {name}"))
        keys = SigningKeys((KEYS[0],))
        header = shop.header(OUTER.format(name="{enum: [newchild, newbroken]}"))
        run = await shop.start(client, "outer", {"name": "newchild", "input": {"text": "x"}}, header, keys=keys)
        await run.result()
        assert shop.said == ["x"]
        run = await shop.start(client, "outer", {"name": "newbroken", "input": {"text": "x"}}, header, keys=keys)
        with pytest.raises(WorkflowFailureError):
            await run.result()
        message = (await client.show(run.id))["reason"]["message"]
        assert "there is no valid saga newbroken: " in message
        assert "`saga dev restart worker`" in message


async def test_an_edited_nested_saga_runs_while_the_worker_stays(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    folder = shop.project.settings.definitions[0]
    header = shop.header(OUTER.format(name="{enum: [own]}"))
    async with running_worker(shop.with_keys(KEYS[0])) as client:
        for text in (OWN, FORGED, FORGED.replace("forged", "again"), OWN.replace("uses:", "used:")):
            (folder / "own.saga.yaml").write_text(text)
            value = {"name": "own", "input": {"text": "x"}}
            await (await shop.start(client, "outer", value, header, keys=SigningKeys((KEYS[0],)))).result()
    assert shop.said == ["x", "forged", "again", "again"]
    assert [record.message for record in caplog.records if "its last valid version runs" in record.message] != []


async def test_keys_are_rotated_by_their_ids(shop: Shop) -> None:
    async with running_worker(shop.with_keys("new" * 16, KEYS[0])) as client:
        for key in ("new" * 16, KEYS[0]):
            await (
                await shop.start(client, "own", {"text": "x"}, shop.header(FORGED), keys=SigningKeys((key,)))
            ).result()
        assert shop.said == ["forged", "forged"]
        handle = await shop.start(client, "own", {"text": "x"}, shop.header(FORGED), keys=SigningKeys((KEYS[1],)))
        assert "its start not signed" in await refusal(handle)


async def test_a_signature_holds_for_its_saga_and_valid_inputs_only(shop: Shop) -> None:
    keys = SigningKeys((KEYS[0],))
    async with running_worker(shop.with_keys(KEYS[0])) as client:
        handle = await shop.start(client, "other", {"text": "x"}, shop.header(FORGED), keys=keys)
        assert await refusal(handle) == "the definition of own was sent for a saga other"
        handle = await shop.start(client, "own", {"text": "too long"}, shop.header(FORGED), keys=keys)
        assert "the input of own is not valid" in await refusal(handle)
        handle = await shop.start(client, "own", {"text": "too long"}, shop.header())
        assert "the input of own is not valid" in await refusal(handle)


async def test_accept_any_is_written_by_hand(shop: Shop) -> None:
    async with running_worker(shop.with_keys(KEYS[0], accept="any")) as client:
        await (await shop.start(client, "own", {"text": "x"}, shop.header(FORGED))).result()
    assert shop.said == ["forged"]


async def test_an_accepted_run_goes_on_with_other_keys_and_definitions(shop: Shop) -> None:
    changed = WAITING.replace("${{ vars.text }}", "${{ vars.text + '!' }}")
    keys = SigningKeys((KEYS[0],))
    async with running_worker(shop.with_keys(KEYS[0])) as client:
        handle = await shop.start(client, "waiting", {}, shop.header(changed), keys=keys)
        await until(lambda: is_running(client, handle.id))
    async with running_worker(shop.with_keys(KEYS[1], KEYS[0])) as client:
        await client.signal(handle.id, "approved")
        assert (await finished(client, handle.id))["state"] == "COMPLETED"
    assert shop.said == ["hello!"]


async def is_running(client: Client, saga_id: str) -> bool:
    return any(step["state"] == "RUNNING" for step in (await client.show(saga_id))["steps"])


@pytest.mark.parametrize("options", [{"cron_schedule": "@every 1s"}, {"retry_policy": RetryPolicy(maximum_attempts=2)}])
async def test_a_state_machine_from_a_stranger_is_refused(shop: Shop, options: dict[str, Any]) -> None:
    """A cron schedule and a retry policy start a run after another one, as continue-as-new does."""
    async with running_worker(shop.project) as client:
        forged = {"_saga": "sagas/1", "machine": "forged", "attributes": [], "native_cancel": False, "recorded": False}
        queue = shop.project.settings.temporal.task_queue
        handle = await client.temporal.start_workflow(
            "own", forged, id=f"own-{uuid.uuid4()}", task_queue=queue, **options
        )
        first = await handle.describe()
        if "cron_schedule" in options:
            await until(lambda: is_another_run(handle, first.run_id))
        last = client.temporal.get_workflow_handle(handle.id, run_id=(await handle.describe()).run_id)
        await until(lambda: has_failed(last))
        if "cron_schedule" in options:
            await handle.terminate()
        assert shop.said == []


async def is_another_run(handle: Any, run_id: str) -> bool:
    return (await handle.describe()).run_id != run_id


async def has_failed(handle: Any) -> bool:
    return (await handle.describe()).status is WorkflowExecutionStatus.FAILED


async def test_arguments_and_definitions_of_a_decision_need_a_signature(shop: Shop) -> None:
    project = shop.with_keys(KEYS[0])
    async with running_worker(project) as client:
        run = await client.start("stuck", {})
        assert (await finished(client, run.id))["state"] == "PARKED"
        handle = client.temporal.get_workflow_handle(run.id)
        forged, _ = parse_text(STUCK.replace("text: own", "text: forged"), "forged", project.context)
        assert forged is not None
        decision = {"step": "broken", "decision": "retry", "reason": "x", "who": "eve"}
        other = await client.start("stuck", {})
        keys = SigningKeys((KEYS[0],))
        for more in ({"with": {"text": "forged"}}, {"definition": to_snapshot(forged)}):
            for signature in (None, {"key": keys.ids[0], "hmac": "0" * 64}):
                with pytest.raises(WorkflowUpdateFailedError) as refused:
                    await handle.execute_update("resolve", {**decision, **more, "signature": signature})
                assert "signed with the key of the project" in str(refused.value.cause)
        assert shop.said.count("forged") == 0
        await client.resolve(run.id, {**decision, "with": {"text": "mended"}})
        assert (await finished(client, run.id))["state"] == "COMPLETED"
        assert shop.said == ["pivot", "pivot", "mended"]
        await client.temporal.get_workflow_handle(other.id).terminate()


async def test_a_signed_decision_counts_once(shop: Shop) -> None:
    """A decision is refused in another run of the id, in the name of another person, and again in the same run."""
    async with running_worker(shop.with_keys(KEYS[0])) as client:
        id = f"stuck-{uuid.uuid4()}"
        await client.start("stuck", {}, id=id)
        assert (await finished(client, id))["state"] == "PARKED"
        handle = client.temporal.get_workflow_handle(id)
        decision = {"step": "broken", "decision": "retry", "reason": "x", "who": "ada", "with": {"text": "own"}}
        await client.resolve(id, decision)
        await until(lambda: is_parked_after(client, id, 2))
        [sent] = [
            event.workflow_execution_update_accepted_event_attributes.accepted_request
            async for event in handle.fetch_history_events()
            if event.HasField("workflow_execution_update_accepted_event_attributes")
        ]
        [again] = [decode_json(payload.data) for payload in sent.input.args.payloads]
        assert again["who"] == "ada"
        # Temporal answers a repeated update from the history, and the step is not tried again.
        await handle.execute_update("resolve", again, id=sent.meta.update_id)
        for forged, update in (
            (again, "another"),
            ({**again, "who": "eve"}, sent.meta.update_id + "2"),
            ({**again, "reason": "y"}, "a third"),
        ):
            await refuses_decision(handle, forged, update)
        assert (await client.show(id))["steps"][1]["attempts"] == 2
        await handle.terminate()
        await client.temporal.start_workflow("stuck", {}, id=id, task_queue=shop.project.settings.temporal.task_queue)
        assert (await finished(client, id))["state"] == "PARKED"
        await refuses_decision(handle, again, sent.meta.update_id)
        await handle.terminate()


async def is_parked_after(client: Client, saga_id: str, attempts: int) -> bool:
    view = await client.show(saga_id)
    return view["state"] == "PARKED" and view["steps"][1]["attempts"] == attempts


async def refuses_decision(handle: Any, decision: dict[str, Any], update_id: str) -> None:
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await handle.execute_update("resolve", decision, id=update_id)
    assert "signed with the key of the project" in str(refused.value.cause)


def forged_notification() -> dict[str, Any]:
    """An unsigned order that names an action and its arguments; any client can claim to send it for a saga."""
    envelope = {"key": "k", "forward_key": "k", "saga_id": "s", "step": "notify-x", "op": "do", "generation": 1}
    call = {"argument": {"text": "forged", "_saga": envelope}, "timeout": 5, "task_queue": None, "summary": "x"}
    order = {"saga": "own", "saga_id": "s", "notification": "x", "when": "completed", "uses": "say", "intervals": []}
    return {**order, "call": call, "problem": None}


@workflow.defn(sandboxed=False)
class Stranger:
    """A workflow of somebody else, which starts children on the queue of the project."""

    @workflow.run
    async def run(self, type: str, id: str, queue: str, order: dict[str, Any]) -> None:
        await workflow.execute_child_workflow(type, order, id=id, task_queue=queue)


async def test_a_notification_from_a_stranger_is_refused(shop: Shop) -> None:
    async with running_worker(shop.project) as client:
        owner = f"own-{uuid.uuid4()}"
        with start_headers({OWNER_HEADER: owner}):
            handle = await client.temporal.start_workflow(
                NOTIFICATION_WORKFLOW,
                forged_notification(),
                id=f"{owner}~notify-x",
                task_queue=shop.project.settings.temporal.task_queue,
            )
        assert "not signed with the key of the project" in await refusal(handle)
    assert shop.said == []


async def test_the_children_of_a_stranger_are_refused(shop: Shop) -> None:
    """A parent proves nothing: workflows of the engine start only as its sagas and clients start them."""
    bulk = {"saga": "own", "sagas": [["forged", {"text": "x"}, {}]]}
    expected = (
        (NOTIFICATION_WORKFLOW, forged_notification(), "not signed with the key of the project"),
        (BULK_WORKFLOW, bulk, "is started by `saga start --from --bulk`"),
        (BATCH_WORKFLOW, {}, f"must begin with {BATCH_PREFIX}"),
    )
    own, theirs = shop.project.settings.temporal.task_queue, f"stranger-{uuid.uuid4()}"
    async with (
        running_worker(shop.project) as client,
        Worker(client.temporal, task_queue=theirs, workflows=[Stranger]),
    ):
        for type, order, refused in expected:
            parent = f"own-{uuid.uuid4()}"
            handle = await client.temporal.start_workflow(
                Stranger.run,
                args=[type, f"{parent}/x", own, order],
                id=parent,
                task_queue=theirs,
            )
            with pytest.raises(WorkflowFailureError) as failed:
                await handle.result()
            assert isinstance(child := failed.value.cause, ChildWorkflowError)
            assert refused in str(child.cause)
    assert shop.said == []


async def test_a_nested_saga_is_never_a_workflow_of_the_engine(shop: Shop) -> None:
    """A signed definition may compute the name: it is that of a saga, or no workflow is started."""
    _, open_list = parse_text(OUTER.format(name="{type: string}"), "outer.saga.yaml", shop.project.context)
    assert [(finding.code, finding.line) for finding in open_list] == [("SAGA421", 5)]
    keys = SigningKeys((KEYS[0],))
    header = shop.header(OUTER.format(name="{enum: [own, saga.notify]}"))
    async with running_worker(shop.with_keys(KEYS[0])) as client:
        for name, refused in {
            NOTIFICATION_WORKFLOW: "saga.notify is not the name of a saga",
            "other": "not valid",
        }.items():
            handle = await shop.start(
                client, "outer", {"name": name, "input": forged_notification()}, header, keys=keys
            )
            with pytest.raises(WorkflowFailureError) as failed:
                await asyncio.wait_for(handle.result(), LIMIT)
            assert refused in str(failed.value.cause)
    assert shop.said == []


async def test_a_signature_starts_nothing_else(shop: Shop) -> None:
    """A client has started a definition that the project no longer has; who reads its start can only repeat it."""
    keys, header, id = SigningKeys((KEYS[0],)), shop.header(FORGED), f"own-{uuid.uuid4()}"
    async with running_worker(shop.with_keys(KEYS[0])) as client:
        await (await shop.start(client, "own", {"text": "x"}, header, keys=keys, id=id)).result()
        signature = sign_start(keys, id, header.data, {id: {"text": "x"}}, at=time.time())
        again = await shop.start(client, "own", {"text": "x"}, header, signature=signature, id=id)
        await again.result()
        other_id = await shop.start(client, "own", {"text": "x"}, header, signature=signature)
        assert "its start not signed" in await refusal(other_id)
        other_input = await shop.start(client, "own", {"text": "y"}, header, signature=signature, id=id)
        assert "its start not signed" in await refusal(other_input)
        other_definition = await shop.start(
            client, "own", {"text": "x"}, shop.header(FORGED, vars={"text": "z"}), signature=signature, id=id
        )
        assert "its start not signed" in await refusal(other_definition)
    assert shop.said == ["forged", "forged"]  # the same call, with the same key


async def test_a_start_is_repeated_only_with_a_signature(shop: Shop) -> None:
    """Another generation makes the effects of a saga that has ended once more."""
    keys, header, id = SigningKeys((KEYS[0],)), shop.header(), f"own-{uuid.uuid4()}"
    resumed = {"started_at": 1, "generations": {"say": 7}, "undone": [], "who": "boss", "reason": "x"}
    order = {"saga": "own", "sagas": [["a", {"text": "y"}, {}]], "again": True}
    async with running_worker(shop.with_keys(KEYS[0])) as client:
        await (await shop.start(client, "own", {"text": "x"}, header, keys=keys, id=id)).result()
        queue = shop.project.settings.temporal.task_queue
        signature = sign_start(keys, id, header.data, {id: {"text": "x"}}, at=time.time())
        signed = {DEFINITION_HEADER: header, SIGNATURE_HEADER: to_header(signature)}
        for earlier in ({GENERATION_HEADER: 5}, {RESUMED_HEADER: resumed}, {GENERATION_HEADER: 1}):
            for start in ({}, {DEFINITION_HEADER: header}, signed):
                with start_headers({**start, **earlier}):
                    run = await client.temporal.start_workflow("own", {"text": "x"}, id=id, task_queue=queue)
                assert "counts only if it is signed" in await refusal(run)
        bulk_id = f"{BULK_PREFIX}{uuid.uuid4()}"
        signature = sign_start(keys, bulk_id, header.data, {"a": {"text": "y"}}, at=time.time())
        with start_headers({DEFINITION_HEADER: header, SIGNATURE_HEADER: to_header(signature)}):
            run = await client.temporal.start_workflow(BULK_WORKFLOW, order, id=bulk_id, task_queue=queue)
        assert "counts only if it is signed" in await refusal(run)
        assert shop.said == ["x"]
        earlier = {GENERATION_HEADER: 5}
        signature = sign_start(keys, id, header.data, {id: {"text": "x"}}, earlier, at=time.time())
        with start_headers({DEFINITION_HEADER: header, SIGNATURE_HEADER: to_header(signature), **earlier}):
            await client.temporal.execute_workflow("own", {"text": "x"}, id=id, task_queue=queue)
    assert shop.said == ["x", "x"]


async def test_an_activity_of_no_workflow_is_refused(shop: Shop) -> None:
    envelope = {"key": "k", "forward_key": "k", "saga_id": "s", "step": "say", "op": "do", "generation": 1}
    async with running_worker(shop.project) as client:
        handle = await client.temporal.start_activity(
            "say",
            {"text": "forged", "_saga": envelope},
            id=f"forged-{uuid.uuid4()}",
            task_queue=shop.project.settings.temporal.task_queue,
            start_to_close_timeout=timedelta(seconds=10),
        )
        with pytest.raises(ActivityFailureError) as failed:
            await handle.result()
        assert "start a saga" in str(failed.value.cause)
    assert shop.said == []


async def test_a_workflow_task_leaves_large_inputs_to_an_activity(shop: Shop) -> None:
    trust, header = WorkerTrust(shop.project), shop.header(saga="waiting").data
    keys = shop.project.settings.signing_keys()
    for inputs, at_once in (
        ([{"text": "x"}] * 100, True),
        ([{"text": "x"}] * MAX_TASK_VALUES, False),
        ([{"text": "x" * MAX_TASK_BYTES}], False),
        ([{"text": "x" * MAX_PAYLOAD_BYTES}], True),  # no activity could take it
    ):
        starts = {f"waiting-{number}": input for number, input in enumerate(inputs)}
        signature = sign_start(keys, "waiting-0", header, starts, at=time.time())
        assert trust.trusts_start("waiting", "waiting-0", starts, header, signature, time.time()) is at_once
    async with running_worker(shop.project) as client:
        handle = await shop.start(client, "waiting", {"text": "x" * MAX_TASK_BYTES}, shop.header(saga="waiting"))
        await handle.signal("approved")
        await handle.result()
        events = (await handle.fetch_history()).events
    called = [event.activity_task_scheduled_event_attributes.activity_type.name for event in events]
    assert [name for name in called if name] == ["saga.verify", "say"]
