"""Sagas of a bulk workflow are seen and acted on like any others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle

from saga_workers.batch.batch_control import cancel_members
from saga_workers.bulk import bulk_updates
from saga_workers.doctor.saga_checks import check_sagas
from saga_workers.interventions import preview_decision
from saga_workers.reconcile.open_saga_findings import find_left_claims
from saga_workers.reconcile.reconcile_input import sagas_of_bulk_workflows
from saga_workers.start.start_requests import BulkRow
from saga_workers.stuck.continuation import continue_saga
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.stuck.stuck_view import read_view_with_stuck
from saga_workers.temporal.temporal_runs import NoAnswer
from saga_workers.views.saga_list import SagaFilter, query_sagas
from sagas.errors import RefusedError
from sagas.project import Project
from sagas.protocol.saga_view import SagaView
from tests.helpers.busy_temporal import accepted_updates, refuse_and_lose_update
from tests.helpers.local_worker import running_worker
from tests.helpers.waiting import LIMIT, until
from tests.integration.bulk.conftest import Bank
from tests.integration.bulk.test_bulk_execution import transfer
from tests.integration.cli.conftest import CommandLine


@asynccontextmanager
async def blocked_accounts(bank: Bank) -> AsyncIterator[None]:
    """No account can be changed inside the block."""
    connection = await psycopg.AsyncConnection.connect(bank.url)
    async with connection:
        await connection.execute("lock table account in share mode")
        yield


async def start_bulk(bank: Bank, saga: str, inputs: Sequence[Any]) -> WorkflowHandle[Any, Any]:
    starter = await bank.client.starter(saga)
    return await starter.start_bulk([BulkRow(input["id"], starter.make_request(input)) for input in inputs])


async def asked_to_leave(bulk: WorkflowHandle[Any, Any]) -> bool:
    """The bulk workflow knows that a saga is to leave."""
    events = (await bulk.fetch_history()).events
    return any(event.HasField("workflow_execution_update_accepted_event_attributes") for event in events)


async def wait_until(bank: Bank, saga_id: str, state: str) -> SagaView:
    async def seen() -> SagaView | None:
        if not (bank.query("select 1 from saga_claim where saga_id = %s", saga_id) or bank.states().get(saga_id)):
            return None
        view = await bank.client.view(saga_id)
        return view if view.state == state and (view.steps or state == "TERMINATED") else None

    return await until(seen, f"{saga_id} is {state}")


async def ids_in_order(bank: Bank, *alone: str) -> list[str] | None:
    """The ids of `saga list`, of the sagas t-1 to t-3 and of these; None until Temporal lists these."""
    own = SagaFilter(task_queue=bank.client.project.settings.temporal.task_queue)  # not the sagas of other tests
    shown = {"t-1", "t-2", "t-3", *alone}
    ids = [view.id async for view in query_sagas(bank.client.locator, own, limit=1000) if view.id in shown]
    return ids if set(alone) <= set(ids) else None


async def test_a_saga_of_a_bulk_workflow_is_seen_cancelled_and_undone(bank: Bank) -> None:
    bank.open_accounts(200)
    ended, running = "w-ended", "w-running"
    await bank.client.start("waiting", {"id": ended, "waits": False})
    await bank.client.temporal.get_workflow_handle(ended).result()
    await bank.client.start("waiting", {"id": running, "waits": True})
    async with blocked_accounts(bank):
        bulk = await start_bulk(bank, "transfer", [transfer(number) for number in (1, 2, 3)])
        view = await wait_until(bank, "t-1", "RUNNING")
        assert view.bulk_workflow == bulk.id
        assert view.labels == {"from": "a1"}
        assert view.steps[0].state == "RUNNING"
        asked = query_sagas(bank.client.locator, SagaFilter(), limit=1000)
        listed = {request.id: request.state async for request in asked}  # with those of other tests
        assert {f"t-{n}": listed.get(f"t-{n}") for n in (1, 2, 3)} == {f"t-{n}": "RUNNING" for n in (1, 2, 3)}
        assert not [id for id in listed if id.startswith("bulk~")]
        order = await until(lambda: ids_in_order(bank, running, ended))
        assert (order[0], sorted(order[1:-1]), order[-1]) == (running, ["t-1", "t-2", "t-3"], ended), "open ones first"
        of_one = SagaFilter("transfer", ("RUNNING",), labels={"from": "a2"})
        asked = query_sagas(bank.client.locator, of_one, limit=1000, ask_running=True)
        assert [(request.id, len(request.steps)) async for request in asked if request.id.startswith("t-")] == [
            ("t-2", 3)
        ]
        with pytest.raises(RefusedError, match="t-3 is RUNNING; only a COMPLETED saga"):
            await bank.client.undo("t-3", reason="test", who="me")
        cancelled = asyncio.ensure_future(bank.client.cancel("t-2", reason="not wanted", who="me"))
        await until(lambda: asked_to_leave(bulk))
    assert await cancelled == "accepted"
    result = await bulk.result()
    assert result["counts"] == {"COMPLETED": 2, "DETACHED": 1}
    with pytest.raises(WorkflowFailureError):
        await bank.client.temporal.get_workflow_handle("t-2").result()
    view = await bank.client.view("t-2")
    assert view.state == "COMPENSATED"
    assert view.reason is not None
    assert view.reason.kind == "cancelled"
    balances = bank.balances()
    assert [balances[f"a{n}"] for n in (1, 2, 3, 101, 102, 103)] == [90, 100, 90, 110, 100, 110]
    with pytest.raises(RefusedError, match="t-1 has already ended COMPLETED"):
        await bank.client.cancel("t-1")

    undo = await bank.client.undo("t-1", reason="wrong account", who="me")
    await bank.client.temporal.get_workflow_handle(undo.id).result()
    assert (await bank.client.view("t-1")).state == "COMPENSATED"
    assert bank.balances()["a1"] == 100
    await until(lambda: _finds(bank, "select 1 from saga_run where saga_id = 't-1' and state = 'COMPENSATED'", 1))
    assert len(bank.query("select 1 from saga_run where saga_id = 't-1'")) == 1
    with pytest.raises(RefusedError, match="t-1 has ended COMPENSATED"):
        await bank.client.start("transfer", transfer(1))
    assert bank.query("select 1 from saga_claim where saga_id = 't-1'") == []
    again = await bank.start("transfer", [transfer(1)], again=True)
    assert again["counts"] == {"COMPLETED": 1}
    assert bank.balances()["a1"] == 90


async def _finds(bank: Bank, query: str, rows: int) -> bool:
    return len(await asyncio.to_thread(bank.query, query)) == rows


async def test_a_saga_that_is_paused_leaves_first(bank: Bank) -> None:
    bulk = await start_bulk(bank, "resting", [{"id": f"r-{n}", "rest": "4s"} for n in (1, 2)])
    await until(lambda: _finds(bank, "select 1 from note", 2))
    await bank.client.pause("r-1", reason="a question", who="me")
    decision = {"step": "rest", "decision": "skip", "reason": "a question", "with": None, "result": None}
    with pytest.raises(RefusedError, match=r"^r-2: "):
        await preview_decision(bank.client.locator, "r-2", decision)  # it stays where it is
    assert (await bulk.result())["counts"] == {"COMPLETED": 1, "DETACHED": 1}

    async def is_held() -> bool:
        paused = (await bank.client.view("r-1")).paused
        return paused is not None and paused.held == ("second",)

    await until(is_held)
    assert bank.query("select text from note where id = 'r-1'") == [("first",)]
    await bank.client.resume("r-1")
    await bank.client.temporal.get_workflow_handle("r-1").result()
    assert bank.query("select text from note where id = 'r-1'") == [("second",)]


@pytest.mark.slow
async def test_actions_on_a_saga_whose_worker_is_gone_are_refused(
    bank_project: tuple[Project, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A saga cannot leave its bulk workflow without a worker; a worker that returns may find the cancel."""
    monkeypatch.setattr(bulk_updates, "UPDATE_TIMEOUT", 1.0)
    project, url = bank_project
    with psycopg.connect(url) as blocking:
        async with running_worker(project, grace=timedelta(seconds=0.2)) as client:
            bank = Bank(client, project, url)
            bank.open_accounts(200)
            blocking.execute("lock table account in share mode")
            bulk = await start_bulk(bank, "transfer", [{**transfer(50), "id": "unattended"}])
            await wait_until(bank, "unattended", "RUNNING")
    refused = "no worker polls the task queue|has not left its bulk workflow .* may still process it"
    for act in (
        client.signal("unattended", "go"),
        client.resolve("unattended", {"step": "take", "decision": "retry"}),
        client.cancel("unattended"),
    ):
        with pytest.raises(NoAnswer, match=refused):
            await act
    with pytest.raises(RefusedError, match="unattended is RUNNING as far as Temporal knows, and no worker "):
        await client.undo("unattended", reason="test", who="me")
    async with running_worker(project) as client:
        result = await asyncio.wait_for(bulk.result(), LIMIT)
        if result["counts"] == {
            "DETACHED": 1
        }:  # it goes on in a workflow of its own, and needs the worker until its end
            with contextlib.suppress(WorkflowFailureError):
                await asyncio.wait_for(client.temporal.get_workflow_handle("unattended").result(), LIMIT)
    assert result["counts"] in ({"COMPLETED": 1}, {"COMPENSATED": 1}, {"DETACHED": 1})
    assert sum(bank.balances().values()) == 200 * 100
    await client.close()


async def test_a_handle_waits_for_a_saga_in_a_bulk_workflow(bank: Bank) -> None:
    bank.open_accounts(200)
    async with blocked_accounts(bank):
        await start_bulk(bank, "transfer", [transfer(1), transfer(2, amount=1000)])
        await wait_until(bank, "t-1", "RUNNING")
        same = await bank.client.start("transfer", transfer(1))
        assert not same.started
        waiting = asyncio.ensure_future(same.result())
        with pytest.raises(RefusedError, match="t-2 has been started with another input"):
            await bank.client.start("transfer", transfer(2))
        await asyncio.sleep(0.2)
        assert not waiting.done()
    assert await waiting == {"moved": 10}
    assert bank.balances()["a1"] == 90


async def test_a_saga_that_has_left_is_undone(bank: Bank) -> None:
    await bank.start("waiting", [{"id": "seen-1", "waits": True}])
    assert bank.query("select bulk_id from saga_claim where saga_id = 'seen-1'") == [(None,)]
    again = await bank.start("waiting", [{"id": "seen-1", "waits": True}])
    assert again["detached"] == ["seen-1"]
    same = await bank.client.start("waiting", {"id": "seen-1", "waits": True})
    assert not same.started
    with pytest.raises(RefusedError, match="another input"):
        await bank.client.start("waiting", {"id": "seen-1", "waits": False})
    await bank.client.signal("seen-1", "go")
    await same.result()
    assert bank.query("select text from note") == [("first",)]
    undo = await bank.client.undo("seen-1", reason="test", who="me")
    await bank.client.temporal.get_workflow_handle(undo.id).result()
    assert (await bank.client.view("seen-1")).state == "COMPENSATED"
    assert bank.query("select text from note") == []
    await until(lambda: _finds(bank, "select 1 from saga_claim", 0))


async def test_a_cancel_by_filter_reaches_sagas_of_bulk_workflows(
    bank: Bank, capsys: pytest.CaptureFixture[str]
) -> None:
    bank.open_accounts(200)
    cli = CommandLine(bank.project.settings.root, capsys, bank.client)
    async with blocked_accounts(bank):
        bulk = await start_bulk(bank, "transfer", [transfer(number) for number in (1, 2, 3)])
        await wait_until(bank, "t-1", "RUNNING")
        left_out = await cli.saga("cancel", "--yes", "--where", "WorkflowType != 'other' AND WorkflowId = 't-1'")
        assert (left_out.code, left_out.out) == (0, "no running saga matches\n")
        assert "sagas of bulk workflows are left out" in left_out.err
        where = "WorkflowType = 'transfer' AND SagaLabels = 'from=a2'"
        cancelled = asyncio.ensure_future(cli.saga("-o", "json", "cancel", "--yes", "--where", where))
        await until(lambda: asked_to_leave(bulk))
    answer = await cancelled
    assert (answer.code, [(row["id"], row["response"]) for row in json.loads(answer.out)]) == (0, [("t-2", "accepted")])
    assert (await bulk.result())["counts"] == {"COMPLETED": 2, "DETACHED": 1}
    with pytest.raises(WorkflowFailureError):
        await bank.client.temporal.get_workflow_handle("t-2").result()
    assert bank.balances()["a2"] == 100


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("together", [True, False], ids=["where they are", "in its own workflow"])
async def test_a_cancel_is_sent_again_while_temporal_is_busy(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """The first request is refused, and the answer to the second one is lost: the bulk workflow gets one update."""
    bank.open_accounts(200)
    locator = bank.client.locator
    async with blocked_accounts(bank):
        bulk = await start_bulk(bank, "transfer", [transfer(1), transfer(2)])
        await wait_until(bank, "t-2", "RUNNING")
        refuse_and_lose_update(monkeypatch, locator.temporal)
        if together:
            response = asyncio.ensure_future(cancel_members(locator, ["t-2"], {"reason": "busy", "who": "me"}))
        else:
            response = asyncio.ensure_future(bank.client.cancel("t-2", reason="busy", who="me"))
        await until(lambda: asked_to_leave(bulk))
    assert await response == ({"t-2": "accepted"} if together else "accepted")
    assert (await bulk.result())["counts"] == (
        {"COMPLETED": 1, "COMPENSATED": 1} if together else {"COMPLETED": 1, "DETACHED": 1}
    )
    assert await accepted_updates(bulk) == 1
    await until(lambda: bank.states().get("t-2") == "COMPENSATED")
    assert bank.balances()["a2"] == 100


async def test_sagas_of_a_terminated_bulk_workflow_are_continued(bank: Bank) -> None:
    bank.open_accounts(200)
    locator = bank.client.locator
    async with blocked_accounts(bank):
        bulk = await start_bulk(bank, "transfer", [transfer(1), transfer(2)])
        await wait_until(bank, "t-1", "RUNNING")
        await bulk.terminate(reason="by mistake")
        view = await bank.client.view("t-1")
        assert view.state == "TERMINATED"
        assert view.reason is not None
        assert "by mistake" in (view.reason.message or "")
    with pytest.raises(RefusedError, match="was terminated with its bulk workflow"):
        await bank.client.cancel("t-1")
    stuck = [stuck_saga async for stuck_saga in list_stuck(locator, SagaFilter(saga="transfer"), limit=1000)]
    assert {stuck_saga.id for stuck_saga in stuck} >= {"t-1", "t-2"}  # with those of other tests
    shown = await read_view_with_stuck(locator, "t-1")
    assert shown.stuck == ("its bulk workflow was closed before it ended: continue it with `saga resume t-1`",)
    claims = await find_left_claims(locator, "bank")
    assert {row.saga_id for row in claims} == {"t-1", "t-2"}
    told = [told for told in await check_sagas(locator.temporal, bank.project) if "bulk workflow was" in told.message]
    assert [(message.ok, message.message[3:15]) for message in told] == [(False, " and 1 more:")]
    assert told[0].help in ("saga resume t-1", "saga resume t-2")
    assert await continue_saga(locator, "t-1", "me", "test") == "undone; it is COMPENSATED"
    view = await bank.client.view("t-1")
    assert view.state == "COMPENSATED"
    assert view.reason is not None
    assert (view.reason.kind, view.reason.message) == ("terminated", "test")  # it has no x-sensitive values
    assert bank.balances()["a1"] == 100
    await until(lambda: _finds(bank, "select 1 from saga_run where saga_id = 't-1' and state = 'COMPENSATED'", 1))
    assert bank.query("select saga_id from saga_claim") == [("t-2",)]
    claimed_views = sagas_of_bulk_workflows(locator, ["t-1", "t-2", "t-9"], horizon=0.0, until=time.time() + 60)
    views = {view.id: view async for view in claimed_views}
    assert {id: (view.state, bool(view.incomplete)) for id, view in views.items()} == {
        "t-1": ("COMPENSATED", False),
        "t-2": ("TERMINATED", True),
    }
