"""A stranger's run with the id of an undo, which no worker has taken for one, changes nothing of what a saga reads."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from saga_spark.reconcile.extracts import ReconciliationScope
from saga_workers.client import Client
from saga_workers.ledger.run_ledger import NoLedger
from saga_workers.location import accepted_undos, counted_undos
from saga_workers.location.locator import Locator
from saga_workers.reconcile.current_views import current_view
from saga_workers.reconcile.reconcile_input import _saga_views
from saga_workers.views.period_report import read_report
from saga_workers.views.saga_list import SagaFilter, query_sagas
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.waiting import until
from tests.integration.engine.test_many_messages import ENCRYPTED
from tests.integration.trust.conftest import Shop
from tests.integration.trust.test_forged_undos import forge_undo
from tests.integration.trust.test_replayed_starts import waits
from tests.integration.trust.test_resets_after_undos import completed

FORMS = ["later", "kept", "terminated"]


@pytest.fixture
async def client(shop: Shop) -> AsyncIterator[Client]:
    shop.project = shop.with_keys("k" * 32)
    async with running_worker(shop.project) as client:
        yield client


async def states(client: Client, id: str) -> dict[str, str]:
    """The state of a saga, as each reader has it."""
    settings = client.project.settings

    async def listed() -> str | None:
        criteria = SagaFilter(task_queue=settings.temporal.task_queue, id_prefix=id)
        views = {view.id: view.state async for view in query_sagas(client.locator, criteria, limit=9)}
        return views.get(id)

    view = await current_view(client.locator, id)
    assert view is not None
    since = datetime.now(UTC).timestamp() - 3600
    scope = ReconciliationScope(since=since)
    views = {view.id: view.state async for view in _saga_views(client.locator, settings, scope, set())}
    return {
        "show": (await client.show(id))["state"],
        "list": await until(listed),
        "reconcile one": view.state,
        "reconcile all": views[id],
    }


@pytest.mark.sampled(turns="how")
@pytest.mark.parametrize("how", FORMS)
async def test_a_completed_saga_stays_completed(client: Client, how: str) -> None:
    id = await completed(client, f"ended-{uuid.uuid4()}")
    await forge_undo(client, id, how)
    await until(lambda: _lists_undo(client, id))
    assert set((await states(client, id)).values()) == {"COMPLETED"}


@workflow.defn(name="moving")
class Stranger:
    """A workflow with the name of a saga, which takes any input and waits."""

    @workflow.run
    async def run(self, _: Any) -> None:
        await workflow.wait_condition(lambda: False)


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("ends", ["completed", "terminated"])
async def test_an_open_run_of_a_worker_of_somebody_else_is_no_undo(client: Client, ends: str) -> None:
    id, queue = f"strange-{uuid.uuid4()}", f"stranger-{uuid.uuid4()}"
    if ends == "completed":
        await completed(client, id)
    else:
        await client.start("moving", {}, id=id)
        await until(lambda: waits(client, id))
        await client.temporal.get_workflow_handle(id).terminate()
    stranger = Worker(
        client.temporal, task_queue=queue, workflows=[Stranger], workflow_runner=UnsandboxedWorkflowRunner()
    )
    async with stranger:
        undo = await client.temporal.start_workflow("moving", {}, id=f"{id}~undo", task_queue=queue)
        await until(lambda: _has_begun(client, undo.id))
        location = await client.locator.locate(id)
        assert location.undo is None
        if ends == "completed":
            assert set((await states(client, id)).values()) == {"COMPLETED"}
        else:
            assert (await client.show(id))["state"] == "TERMINATED"
        await undo.terminate()


async def _has_begun(client: Client, workflow_id: str) -> bool:
    history = await client.temporal.get_workflow_handle(workflow_id).fetch_history()
    return any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED for event in history.events)


@pytest.mark.sampled(turns="how")
@pytest.mark.parametrize("how", FORMS)
async def test_an_undone_saga_stays_undone(client: Client, how: str) -> None:
    id = await completed(client, f"undone-{uuid.uuid4()}")
    await client.undo(id, reason="a test", who="anna")
    assert (await finished(client, id))["state"] == "COMPENSATED"
    await forge_undo(client, id, how)
    await until(lambda: _lists_undo(client, id, runs=2))
    assert set((await states(client, id)).values()) == {"COMPENSATED"}


@pytest.mark.parametrize("how", FORMS)
async def test_a_terminated_saga_counts_as_terminated(client: Client, how: str) -> None:
    id = f"lost-{uuid.uuid4()}"
    await client.start("moving", {}, id=id)
    await until(lambda: waits(client, id))
    await client.temporal.get_workflow_handle(id).terminate()
    await forge_undo(client, id, how)
    await until(lambda: _lists_undo(client, id))
    now = datetime.now(UTC)
    queue = client.project.settings.temporal.task_queue
    criteria = SagaFilter(task_queue=queue, since=now - timedelta(hours=1))
    report = await read_report(client.locator, criteria, ("moving",), now)
    [count] = [count for count in report.sagas if count.saga == "moving"]
    assert count.states.get("TERMINATED") == 1


async def _lists_undo(client: Client, id: str, *, runs: int = 1) -> bool:
    query = f"WorkflowId = '{id}~undo'"
    return (await client.temporal.count_workflows(query)).count == runs


async def test_an_undo_that_waits_for_a_worker_counts(shop: Shop) -> None:
    shop.project = shop.with_keys("k" * 32)
    async with running_worker(shop.project) as client:
        id = await completed(client, f"waits-{uuid.uuid4()}")
    async with await Client.connect(shop.project) as client:
        await client.temporal.start_workflow(
            "moving",
            {"who": "anna", "reason": "a test"},
            id=f"{id}~undo",
            task_queue=shop.project.settings.temporal.task_queue,
        )
        await until(lambda: _lists_undo(client, id))
        assert set((await states(client, id)).values()) == {"COMPENSATING"}


async def test_an_undo_that_no_worker_can_read_does_not_count(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted_undos, "_MANY_ATTEMPTS", 1)
    id = await completed(client, f"encrypted-{uuid.uuid4()}")
    undo = await client.temporal.start_workflow(
        "moving", ENCRYPTED, id=f"{id}~undo", task_queue=client.project.settings.temporal.task_queue
    )
    await until(lambda: _lists_undo(client, id))

    async def is_completed() -> bool:
        return set((await states(client, id)).values()) == {"COMPLETED"}

    await until(is_completed)
    await undo.terminate()


async def test_a_terminated_undo_counts_after_the_task_queue_was_renamed(shop: Shop, client: Client) -> None:
    id = await completed(client, f"renamed-{uuid.uuid4()}")
    shop.may_answer.clear()
    await client.undo(id, reason="a test", who="anna")
    await until(lambda: "withdraw" in shop.said)
    await client.temporal.get_workflow_handle(f"{id}~undo").terminate()
    shop.may_answer.set()
    settings = client.project.settings
    renamed = settings.temporal.model_copy(update={"task_queue": f"renamed-{uuid.uuid4()}"})
    locator = Locator(client.temporal, NoLedger(), settings.model_copy(update={"temporal": renamed}))
    unpolled = AsyncMock(return_value=False)
    with patch.object(counted_undos, "is_served", unpolled):
        location = await locator.locate(id)
    assert location.undo is not None
    assert location.undo.run.id == f"{id}~undo"
