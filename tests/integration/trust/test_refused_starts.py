"""Starts by any client under the id of a saga that never become one: refused, or terminated before they are accepted.

They change nothing, so they do not hide the end of the saga.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowFailureError

from saga_activities.input_checks import INPUT_CHECKS
from saga_activities.ledger.records import NewClaim
from saga_cli.wait import wait_for_end
from saga_workers.client import Client
from saga_workers.interventions import cancel, undo
from saga_workers.reconcile.current_views import current_view
from saga_workers.signals.signal_delivery import SagaNotFound, Signal, SignalDelivery
from saga_workers.start.bulk_rows import BulkRowStarter
from saga_workers.start.row_starts import StartRow
from saga_workers.start.shared_starts import SharedStarts
from saga_workers.start.start_gate import StartGate
from saga_workers.start.start_limits import StartLimits
from saga_workers.start.tally import Tally
from saga_workers.stuck.open_sagas import find_lost
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.temporal import saga_runs
from saga_workers.temporal.temporal_runs import NoAnswer, RunInfo, describe_run, list_runs
from saga_workers.views.saga_list import SagaFilter, query_sagas
from saga_workers.views.saga_view import read_view
from saga_workers.worker.earlier_children import look_up_earlier_child
from saga_workers.worker.stage_upkeep import liveness_of
from sagas.errors import RefusedError, UsageError
from sagas.protocol.payloads import UNDO_SUFFIX
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.run_changes import delete_run
from tests.helpers.waiting import until
from tests.integration.bulk.conftest import Bank
from tests.integration.bulk.conftest import bank as bank
from tests.integration.bulk.conftest import bank_project as bank_project
from tests.integration.trust.conftest import Shop

Claim = Callable[[Client, str], Awaitable[None]]
"""Starts a run under an id, that of a saga or of its undo, which never becomes a saga."""


async def start_refused(client: Client, id: str, saga: str = "transfer", input: Any = None) -> None:
    """Start a run as any client of Temporal may, which the worker refuses."""
    queue = client.project.settings.temporal.task_queue
    handle = await client.temporal.start_workflow(saga, input or {"bad": 1}, id=id, task_queue=queue)
    with contextlib.suppress(WorkflowFailureError):
        await handle.result()
    described = await describe_run(client.temporal, id)
    assert described is not None
    assert described.run.status.name == "FAILED"


async def start_refused_name(client: Client, id: str) -> None:
    await start_refused(client, id, "nosuch", {})


async def terminate_before_task(client: Client, id: str) -> None:
    """Start a run as any client of Temporal may, and terminate it before its first workflow task."""
    queue, later = client.project.settings.temporal.task_queue, timedelta(hours=1)
    handle = await client.temporal.start_workflow("transfer", {"id": id}, id=id, task_queue=queue, start_delay=later)
    await handle.terminate("test")


async def terminate_before_check(client: Client, id: str) -> None:
    """Start a run as any client of Temporal may, and terminate it while its input waits for a check."""
    queue = client.project.settings.temporal.task_queue

    async def is_waiting() -> bool:
        described = await describe_run(client.temporal, id)
        assert described is not None
        return any(pending.attempt > 1 for pending in described.raw.pending_activities)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(INPUT_CHECKS, "is_busy", lambda caller: True)
        handle = await client.temporal.start_workflow("transfer", {"id": id}, id=id, task_queue=queue)
        await until(is_waiting)
        await handle.terminate("test")


NO_SAGA = [start_refused, start_refused_name, terminate_before_task, terminate_before_check]


async def listed_states(client: Client, id: str, *states: str) -> list[str]:
    """The states with which `saga list` shows the saga."""
    criteria = SagaFilter(task_queue=client.project.settings.temporal.task_queue, states=states)
    return [view.state async for view in query_sagas(client.locator, criteria, limit=50) if view.id == id]


async def complete(bank: Bank, id: str, input: dict[str, Any]) -> None:
    await bank.client.start("transfer", input)
    assert (await finished(bank.client, id))["state"] == "COMPLETED"
    await until(lambda: bank.states() == {id: "COMPLETED"})


async def waiting_saga(bank: Bank) -> str:
    """The id of a saga that has made its first effect and waits for a signal."""
    id = f"w-{uuid.uuid4()}"
    await bank.client.start("waiting", {"id": id, "waits": True})
    await until(lambda: bank.query("select 1 from note where id = %s", id) != [])
    return id


async def wait_until_visible(client: Client, id: str, count: int) -> None:
    """Wait until the visibility store has this many closed runs of the id."""

    async def is_visible() -> bool:
        closed = await client.temporal.count_workflows(f"WorkflowId = '{id}' AND ExecutionStatus != 'Running'")
        return closed.count >= count

    await until(is_visible)


@pytest.mark.sampled(turns="claim")
@pytest.mark.parametrize("claim", NO_SAGA)
async def test_the_run_before_it_is_the_saga(bank: Bank, claim: Claim) -> None:
    id, input = bank.new_transfer()
    client = bank.client
    await complete(bank, id, input)
    await claim(client, id)
    await claim(client, id)
    await wait_until_visible(client, id, 3)
    view = await read_view(client.locator, id)
    assert (view.state, view.saga, view.incomplete, view.can_undo) == ("COMPLETED", "transfer", None, True)
    assert await listed_states(client, id) == ["COMPLETED"]
    assert await listed_states(client, id, "COMPLETED") == ["COMPLETED"]
    assert await listed_states(client, id, "FAILED", "TERMINATED") == []
    seen = await current_view(client.locator, id)
    assert seen is not None
    assert seen.state == "COMPLETED"
    started = await client.start("transfer", input)
    assert not started.started
    queue = bank.project.settings.temporal.task_queue
    await undo(client.locator, id, reason="wrong", who="me", task_queue=queue)
    assert (await wait_for_end(client, id, "60s")).state == "COMPENSATED"
    assert bank.balances() == {"a1": 100, "a2": 100}


@pytest.mark.sampled(turns="claim")
@pytest.mark.parametrize("claim", [start_refused, start_refused_name, terminate_before_task])
async def test_the_undo_before_it_is_the_undo(bank: Bank, claim: Claim) -> None:
    id, input = bank.new_transfer()
    client, queue = bank.client, bank.project.settings.temporal.task_queue
    await complete(bank, id, input)
    await undo(client.locator, id, reason="wrong", who="me", task_queue=queue)
    assert (await wait_for_end(client, id, "60s")).state == "COMPENSATED"
    await claim(client, id + UNDO_SUFFIX)
    await wait_until_visible(client, id + UNDO_SUFFIX, 2)
    assert (await read_view(client.locator, id)).state == "COMPENSATED"
    assert await listed_states(client, id) == ["COMPENSATED"]
    with pytest.raises(RefusedError, match="is COMPENSATED; only a COMPLETED saga can be undone"):
        await undo(client.locator, id, reason="again", who="me", task_queue=queue)


@pytest.mark.sampled(turns="claim")
@pytest.mark.parametrize("claim", NO_SAGA)
async def test_the_row_of_the_ledger_is_the_saga(bank: Bank, claim: Claim) -> None:
    """Temporal has deleted the run of the saga."""
    id, input = bank.new_transfer()
    client, queue = bank.client, bank.project.settings.temporal.task_queue
    await complete(bank, id, input)
    await delete_run(client.temporal, id)
    await claim(client, id)
    await wait_until_visible(client, id, 1)
    view = await read_view(client.locator, id)
    assert (view.state, view.source) == ("COMPLETED", "ledger")
    assert await listed_states(client, id) == ["COMPLETED"]
    assert await listed_states(client, id, "COMPLETED") == ["COMPLETED"]
    assert await current_view(client.locator, id) is None
    started = await client.start("transfer", input)
    assert (started.started, started.source) == (False, "ledger")
    await undo(client.locator, id, reason="wrong", who="me", task_queue=queue)
    assert (await wait_for_end(client, id, "60s")).state == "COMPENSATED"
    assert bank.balances() == {"a1": 100, "a2": 100}


async def test_a_terminated_saga_stays_stuck(bank: Bank) -> None:
    client, id = bank.client, await waiting_saga(bank)
    await client.temporal.get_workflow_handle(id).terminate("test")
    await start_refused(client, id, "waiting")
    await wait_until_visible(client, id, 2)
    assert (await client.view(id)).state == "TERMINATED"
    assert await liveness_of(client.locator, id) == "terminated"
    criteria = SagaFilter(task_queue=bank.project.settings.temporal.task_queue)
    stuck = [view.id async for view in list_stuck(client.locator, criteria, limit=10)]
    assert stuck == [id]


@pytest.mark.sampled(turns="claim")
@pytest.mark.parametrize("claim", NO_SAGA)
async def test_a_deleted_saga_is_found(bank: Bank, claim: Claim) -> None:
    client, id = bank.client, await waiting_saga(bank)
    await delete_run(client.temporal, id)
    await claim(client, id)
    await wait_until_visible(client, id, 1)
    deleted = await find_lost(client.locator, bank.project.settings, suspects=[id])
    assert [(saga.saga_id, saga.saga, saga.holds) for saga in deleted] == [
        (id, "waiting", ("open effects: first on bank",))
    ]


@pytest.mark.sampled(turns="claim")
@pytest.mark.parametrize("claim", NO_SAGA)
async def test_the_id_is_free_for_a_saga(bank: Bank, claim: Claim) -> None:
    id, input = bank.new_transfer()
    client = bank.client
    await claim(client, id)
    with pytest.raises(UsageError, match=f"there is no saga with the id {id}"):
        await cancel(client.locator, id)
    with pytest.raises(SagaNotFound):
        await SignalDelivery(client.locator, 1).deliver(Signal(id, "go", None, "me"), None)
    starts = await asyncio.gather(*(client.start("transfer", input) for _ in range(3)))
    assert sorted(start.started for start in starts) == [False, False, True]
    assert (await finished(client, id))["state"] == "COMPLETED"
    await claim(client, id)
    assert not (await client.start("transfer", input, again=True)).started
    assert bank.balances() == {"a1": 93, "a2": 107}


async def test_the_id_is_free_for_sagas_that_start_together(bank: Bank) -> None:
    client = bank.client
    starter = await client.starter("transfer")
    rows = []
    for is_claimed in (True, False):
        id, input = bank.new_transfer() if not rows else (f"t-{uuid.uuid4()}", dict(rows[0][1]))
        rows.append((id, {**input, "id": id}))
        if is_claimed:  # by a start that was refused
            claimed = await client.ledger.claim_single(NewClaim(id, "another", {}), "transfer")
            assert claimed.made_at is not None
        await start_refused(client, id)
    shared = SharedStarts(starter)
    results = await asyncio.gather(*(shared.start(starter.make_request(input)) for _, input in rows))
    assert len(results) == 2
    for id, _ in rows:
        assert (await finished(client, id))["state"] == "COMPLETED"
    assert bank.balances() == {"a1": 86, "a2": 114}


async def test_the_id_is_free_for_a_row_of_a_batch(bank: Bank) -> None:
    """A start has claimed the id in the ledger before it was refused."""
    id, input = bank.new_transfer()
    client = bank.client
    starter = await client.starter("transfer")
    await client.ledger.claim_single(NewClaim(id, "another", {}), "transfer")
    await start_refused(client, id)
    tally = Tally(1)
    rows = BulkRowStarter(
        10, starter, tally, StartLimits(), StartGate(), batch="b", wait_for_end=True, progress=lambda tally: None
    )
    await rows.start_all([StartRow("row 1", id, starter.make_request(input))])
    assert (tally.refused, tally.ended) == (0, {"COMPLETED": 1})


async def test_the_id_is_free_without_a_ledger(shop: Shop) -> None:
    id = f"own-{uuid.uuid4()}"
    async with running_worker(shop.project) as client:
        await start_refused(client, id, "own", {"text": "too long"})
        assert (await client.start("own", {"text": "good"}, id=id)).started
        assert (await finished(client, id))["state"] == "COMPLETED"
        assert not (await client.start("own", {"text": "good"}, id=id)).started
        with pytest.raises(RefusedError, match="has been started with another input"):
            await client.start("own", {"text": "bad"}, id=id)
        assert shop.said == ["good"]


async def test_the_id_of_a_nested_saga_is_free(shop: Shop) -> None:
    id = f"outer-{uuid.uuid4()}"
    nested = f"{id}/move"
    async with running_worker(shop.project) as client:
        await start_refused(client, nested, "moving", {})
        await wait_until_visible(client, nested, 1)
        earlier = await look_up_earlier_child(client.project.settings, client.locator, nested, id, "")
        assert earlier == {"state": "FREE"}
        await client.start("outer", {}, id=id)
        await until(lambda: "debit" in shop.said)
        await client.signal(nested, "approved")
        assert (await finished(client, id))["state"] == "COMPLETED"


async def test_the_id_waits_until_the_runs_before_are_listed(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A completed run is not in the visibility store yet when a refused one comes after it."""
    id, input = bank.new_transfer()
    await complete(bank, id, input)
    await start_refused(bank.client, id)
    await wait_until_visible(bank.client, id, 2)
    looks = 0

    async def lagging(temporal: Temporal, query: str) -> AsyncIterator[RunInfo]:
        nonlocal looks
        looks += 1
        async for run in list_runs(temporal, query):
            if looks > 2:
                yield run

    monkeypatch.setattr(saga_runs, "list_runs", lagging)
    assert not (await bank.client.start("transfer", input)).started
    assert looks > 2
    assert bank.balances() == {"a1": 93, "a2": 107}


@pytest.mark.sampled(turns="claim")
@pytest.mark.parametrize("claim", [start_refused, terminate_before_task])
async def test_a_start_is_tried_again_while_the_runs_before_are_not_listed(
    bank: Bank, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, input = bank.new_transfer()
    await claim(bank.client, id)

    async def lagging(temporal: Temporal, query: str) -> AsyncIterator[RunInfo]:
        async for run in list_runs(temporal, query):
            if run.id != id:
                yield run

    with monkeypatch.context() as patch:
        patch.setattr(saga_runs, "list_runs", lagging)
        patch.setattr(saga_runs, "_VISIBILITY_LAG", 0.1)
        with pytest.raises(NoAnswer, match="does not list the runs of this id yet"):
            await bank.client.start("transfer", input)
    assert (await bank.client.start("transfer", input)).started


async def test_a_refused_run_alone_is_shown(bank: Bank) -> None:
    client, id = bank.client, f"t-{uuid.uuid4()}"
    await start_refused(client, id)
    await wait_until_visible(client, id, 1)
    view = await client.view(id)
    assert (view.state, view.reason is not None and view.reason.type) == ("FAILED", "SagaRefused")
    assert await listed_states(client, id) == ["FAILED"]


async def test_the_run_of_a_nested_saga_before_it_counts(shop: Shop) -> None:
    id = f"outer-{uuid.uuid4()}"
    async with running_worker(shop.project) as client:
        await client.start("outer", {}, id=id)
        await until(lambda: "debit" in shop.said)
        nested = f"{id}/move"
        await client.signal(nested, "approved")
        assert (await finished(client, id))["state"] == "COMPLETED"
        await start_refused(client, nested, "moving")
        await wait_until_visible(client, nested, 2)
        settings = client.project.settings
        assert (await look_up_earlier_child(settings, client.locator, nested, id, ""))["state"] == "COMPLETED"
