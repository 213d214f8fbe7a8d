"""Runs that a stranger starts under the id of an ended saga, or of its undo, and closes with any outcome."""

from __future__ import annotations

import contextlib
import uuid
from functools import partial
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowFailureError
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from saga_cli.exit_codes import FAILED, exit_code
from saga_workers.batch.batch_control import failed_sagas
from saga_workers.batch.batch_view import read_batch
from saga_workers.client import Client
from saga_workers.reconcile.current_views import current_view
from saga_workers.reconcile.ledger_check import write_row
from saga_workers.relay.entry_status import entry_status
from saga_workers.serve.public_outcome import public_outcome
from saga_workers.start.existing_sagas import Unverified
from saga_workers.start.row_starts import final_state
from saga_workers.views.saga_list import SagaFilter, query_sagas
from saga_workers.worker.stage_upkeep import liveness_of
from sagas.errors import RefusedError
from sagas.protocol.doubtful_outcomes import UNVERIFIED
from sagas.protocol.payloads import OUTCOME_MEMO, UNDO_SUFFIX
from tests.helpers import eager_start
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.run_changes import delete_run
from tests.helpers.waiting import until
from tests.integration.bulk.conftest import Bank
from tests.integration.bulk.conftest import bank as bank
from tests.integration.bulk.conftest import bank_project as bank_project
from tests.integration.trust.conftest import Shop


@workflow.defn(name="own", sandboxed=False)
class Stranger:
    """Closes with the view that its client wants."""

    @workflow.run
    async def run(self, view: dict[str, Any] | None) -> None:
        if view is not None:
            workflow.upsert_memo({OUTCOME_MEMO: view})
        if view is not None and view["state"] == "RUNNING":
            await workflow.wait_condition(lambda: False)
        if view is not None and view["state"] == "COMPENSATED" and "~undo" not in workflow.info().workflow_id:
            workflow.upsert_search_attributes([STATE.value_set("COMPENSATED")])
            raise ApplicationError("undone", non_retryable=True)


@workflow.defn(name="transfer", sandboxed=False)
class StrangersTransfer(Stranger):
    """Under the name of another saga."""

    @workflow.run
    async def run(self, view: dict[str, Any] | None) -> None:
        await super().run(view)


@workflow.defn(name="waiting", sandboxed=False)
class StrangersWaiting(Stranger):
    """Under the name of another saga."""

    @workflow.run
    async def run(self, view: dict[str, Any] | None) -> None:
        await super().run(view)


STATE = SearchAttributeKey.for_keyword("SagaState")
LABELS = SearchAttributeKey.for_keyword_list("SagaLabels")


async def close_as_stranger(client: Client, id: str, view: dict[str, Any] | None, *, saga: str = "own") -> None:
    """Close a run of the saga with this view, on a task queue of the stranger."""
    queue = f"stranger-{uuid.uuid4()}"
    runner = UnsandboxedWorkflowRunner()
    names = [Stranger, StrangersTransfer, StrangersWaiting]
    async with Worker(client.temporal, task_queue=queue, workflows=names, workflow_runner=runner):
        handle = await client.temporal.start_workflow(saga, args=[view], id=id, task_queue=queue)
        with contextlib.suppress(WorkflowFailureError):
            await handle.result()


@pytest.mark.sampled
@pytest.mark.parametrize("suffix", ["", UNDO_SUFFIX])
@pytest.mark.parametrize("has_view", [True, False])
async def test_a_forged_outcome_is_shown_as_unverified(shop: Shop, suffix: str, has_view: bool) -> None:
    id = f"own-{uuid.uuid4()}"
    async with running_worker(shop.project) as client:
        await client.start("own", {"text": "x"}, id=id)
        true = await finished(client, id)
        assert true.get("incomplete") is None
        state = "COMPENSATED" if suffix else "COMPLETED"
        forged = {**true, "state": state, "output": "forged"} if has_view else None
        await close_as_stranger(client, id + suffix, forged)
        assert (await client.show(id))["incomplete"] == UNVERIFIED

        async def is_listed() -> bool:
            listed = query_sagas(client.locator, SagaFilter(saga="own"), limit=50)
            return UNVERIFIED in [view.incomplete async for view in listed if view.id == id]

        await until(is_listed)


def forged_view(id: str, state: str, **fields: Any) -> dict[str, Any]:
    reason = {"kind": "rejected", "step": "say", "type": "Rejected", "message": "forged", "details": {}}
    step = {"id": "say", "step": "say", "uses": "say", "state": "DONE", "outcome": "done", "generation": 1}
    return {"id": id, "saga": "own", "state": state, "reason": reason, "steps": [step], "generation": 7, **fields}


@pytest.mark.parametrize("state", ["COMPLETED", "COMPENSATED"])
async def test_a_forged_end_decides_nothing(shop: Shop, state: str) -> None:
    """Neither a start, nor who waits for the end, nor a held event takes the state of a stranger's run for an end."""
    id = f"own-{uuid.uuid4()}"
    async with running_worker(shop.project) as client:
        await close_as_stranger(client, id, forged_view(id, state))
        with pytest.raises(Unverified, match="no key of this project has signed how it has ended"):
            await client.start("own", {"text": "x"}, id=id)
        with pytest.raises(Unverified):
            await client.start("own", {"text": "x"}, id=id, again=True)
        assert await final_state(client.locator, id) == "TERMINATED"
        assert public_outcome(await client.view(id))["state"] == "TERMINATED"
        assert await liveness_of(client.locator, id) == "terminated"
        view = await client.view(id)
        assert (view.state, view.incomplete, exit_code(view)) == (state, UNVERIFIED, FAILED)
        assert entry_status(view, "say", 1).kind == "unknown"
        seen = await current_view(client.locator, id)
        assert seen is not None
        assert (seen.state, seen.incomplete, seen.can_undo, seen.steps) == ("TERMINATED", UNVERIFIED, False, ())
    assert shop.said == []


async def test_the_ledger_knows_better_than_a_forged_end(bank: Bank) -> None:
    bank.open_accounts(2)
    id, client = f"t-{uuid.uuid4()}", bank.client
    input = {"id": id, "from": "a1", "to": "a2", "amount": 7}
    await client.start("transfer", input)
    assert (await finished(client, id))["state"] == "COMPLETED"
    await until(lambda: bank.states() == {id: "COMPLETED"})
    await close_as_stranger(client, id, forged_view(id, "COMPENSATED", saga="transfer"), saga="transfer")
    seen = await current_view(client.locator, id)
    assert seen is not None
    assert (seen.state, seen.incomplete) == ("COMPLETED", None)
    assert await final_state(client.locator, id) == "COMPLETED"
    with pytest.raises(RefusedError, match=r"COMPENSATED \(unverified\)"):
        await write_row(client.locator, id)
    assert bank.states() == {id: "COMPLETED"}
    again = await client.start("transfer", input)
    assert (again.started, again.source) == (False, "ledger")
    view = await client.view(id)
    assert (view.state, view.is_unverified) == ("COMPLETED", False)
    await client.undo(id, reason="its run has another task queue", who="ada")
    assert (await finished(client, id))["state"] == "COMPENSATED"
    await until(lambda: bank.states() == {id: "COMPENSATED"})


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_terminated_run_of_a_stranger_hides_no_end(bank: Bank, is_deleted: bool) -> None:
    bank.open_accounts(2)
    id, client = f"t-{uuid.uuid4()}", bank.client
    input = {"id": id, "from": "a1", "to": "a2", "amount": 7}
    await client.start("transfer", input)
    assert (await finished(client, id))["state"] == "COMPLETED"
    await until(lambda: bank.states() == {id: "COMPLETED"})
    if is_deleted:
        await delete_run(client.temporal, id)
    await terminate_as_stranger(client, id, forged_view(id, "RUNNING", saga="transfer"))
    again = await client.start("transfer", input)
    assert not again.started
    view = await client.view(id)
    assert (view.state, view.is_unverified) == ("COMPLETED", False)
    await client.undo(id, reason="x", who="ada")
    assert (await finished(client, id))["state"] == "COMPENSATED"


async def terminate_as_stranger(client: Client, id: str, view: dict[str, Any]) -> None:
    """Terminate a run of the saga after a worker of the stranger has taken it up."""
    queue = f"stranger-{uuid.uuid4()}"
    runner = UnsandboxedWorkflowRunner()
    async with Worker(client.temporal, task_queue=queue, workflows=[StrangersTransfer], workflow_runner=runner):
        handle = await client.temporal.start_workflow("transfer", args=[view], id=id, task_queue=queue)

        async def is_taken_up() -> bool:
            return OUTCOME_MEMO in (await handle.describe()).raw_description.workflow_execution_info.memo.fields

        await until(is_taken_up)
        await handle.signal("go-on")  # its task follows the one that has accepted the start
        await until(partial(has_gone_on, handle))
        await handle.terminate()


async def has_gone_on(handle: Any) -> bool:
    history = await handle.fetch_history()
    return len([event for event in history.events if event.HasField("workflow_task_completed_event_attributes")]) > 1


async def test_the_ledger_knows_better_than_a_forged_undo(bank: Bank) -> None:
    """Temporal has deleted the run of the saga, so the run of its undo is the only one."""
    bank.open_accounts(2)
    id, client = f"t-{uuid.uuid4()}", bank.client
    await client.start("transfer", {"id": id, "from": "a1", "to": "a2", "amount": 7})
    await finished(client, id)
    await until(lambda: bank.states() == {id: "COMPLETED"})
    await delete_run(client.temporal, id)
    await close_as_stranger(client, id + UNDO_SUFFIX, forged_view(id, "COMPENSATED", saga="transfer"), saga="transfer")
    view = await client.view(id)
    assert (view.state, view.is_of_unsigned_run) == ("COMPLETED", True)


async def test_a_batch_counts_no_forged_end(shop: Shop) -> None:
    batch, queue = f"batch-{uuid.uuid4()}", shop.project.settings.temporal.task_queue
    ids = {state: f"own-{uuid.uuid4()}" for state in ("COMPLETED", "COMPENSATED", "RESIDUE")}
    async with running_worker(shop.project) as client:
        label = SearchAttributePair(LABELS, [f"batch={batch}"])
        starter = await client.starter("own")
        honest = await starter.start(await starter.check({"text": "x"}), labels={"batch": batch})
        await finished(client, honest.id)
        starter = await client.starter("waiting")
        failed = await starter.start(await starter.check({}), labels={"batch": batch})
        await client.cancel(failed.id, reason="not wanted")
        assert (await finished(client, failed.id))["state"] == "COMPENSATED"
    client = Client(client.temporal, shop.project)
    for state, id in ids.items():
        # The filter of a batch is for the queue of the project, which nobody else reads now.
        shown = [SearchAttributePair(STATE, state)] if state == "RESIDUE" else []
        attributes = TypedSearchAttributes([label, *shown])
        handle = await client.temporal.start_workflow(
            "own", None, id=id, task_queue=queue, search_attributes=attributes
        )
        end = [eager_start.upsert_memo(OUTCOME_MEMO, forged_view(id, state)), eager_start.complete()]
        await eager_start.complete_next_task(client.temporal, queue, end)
        await handle.result()

    async def is_counted() -> bool:
        view = await read_batch(client.locator, batch, queue)
        assert "forged" not in str(view.to_json())
        return view.sagas == {"COMPLETED": 1, "COMPENSATED": 1, "TERMINATED": 3}

    await until(is_counted)
    started_again = await failed_sagas(client.locator, batch, queue)
    assert [saga.id for saga in started_again.sagas] == [failed.id]
