"""Locations of sagas: every answer of the locator, and the moves that happen between two of its questions."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from saga_workers.bulk.detach_request import leave_bulk_workflow
from saga_workers.ledger.run_ledger import LedgerUnavailable
from saga_workers.location.locator import Locator
from sagas.errors import UsageError
from tests.helpers.waiting import until
from tests.integration.bulk.conftest import Bank
from tests.integration.bulk.test_bulk_execution import transfer
from tests.integration.bulk.test_views_and_actions import blocked_accounts, start_bulk, wait_until


def before_the_next(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], Awaitable[Any]]) -> None:
    """Do something once, just before the next call of a method."""
    method = getattr(owner, name)

    async def call(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, method)
        await act()
        return await method(*arguments, **options)

    monkeypatch.setattr(owner, name, call)


def alone(number: int, **changes: Any) -> dict[str, Any]:
    """The input of a saga with a run of its own: all tests share one Temporal server."""
    return {**transfer(number, **changes), "id": f"alone-{uuid.uuid4().hex[:8]}"}


async def test_a_saga_is_found_wherever_it_lives(bank: Bank) -> None:
    bank.open_accounts(200)
    locator = bank.client.locator
    assert (await locator.locate("t-1")).kind == "unknown"
    with pytest.raises(UsageError, match="there is no saga with the id t-1"):
        await locator.locate_known("t-1")
    async with blocked_accounts(bank):
        bulk = await start_bulk(bank, "transfer", [transfer(1)])
        await wait_until(bank, "t-1", "RUNNING")
        inside = await locator.locate("t-1")
        assert (inside.kind, inside.open_run) == ("in bulk", None)
        assert inside.member is not None
        assert inside.member.bulk_id == bulk.id == (inside.workflow and inside.workflow.run.id)
        assert (await locator.within_temporal().locate("t-1")).kind == "unknown"
        single = await bank.client.start("transfer", alone(2))
        running = await locator.locate(single.id)
        assert running.kind == "running"
        assert running.open_run is not None
        assert running.open_run.run.run_id == single.run_id
    await bulk.result()
    await single.result()
    in_ledger, closed = await locator.locate("t-1"), await locator.locate(single.id)
    assert (in_ledger.kind, closed.kind) == ("ended", "ended")
    assert in_ledger.row is not None
    assert in_ledger.row.view.state == "COMPLETED"
    assert closed.run is not None
    assert (in_ledger.open_run, closed.open_run) == (None, None)
    async with blocked_accounts(bank):
        for saga_id in ("t-1", single.id):
            undo = await bank.client.undo(saga_id, reason="test", who="me")
            for id in (saga_id, undo.id):
                undoing = await locator.locate(id)
                assert (undoing.kind, undoing.saga_id) == ("undoing", saga_id)
                assert undoing.open_run is not None
                assert undoing.open_run.run.id == undo.id
            await bank.client.temporal.get_workflow_handle(undo.id).terminate(reason="the test ends")


async def test_a_saga_whose_run_was_terminated_is_found_as_such(bank: Bank) -> None:
    bank.open_accounts(200)
    async with blocked_accounts(bank):
        bulk = await start_bulk(bank, "transfer", [transfer(1)])
        single = await bank.client.start("transfer", alone(2))
        await wait_until(bank, "t-1", "RUNNING")
        for id in (bulk.id, single.id):
            await bank.client.temporal.get_workflow_handle(id).terminate(reason="by mistake")
        member, own = await bank.client.locator.locate("t-1"), await bank.client.locator.locate(single.id)
    assert (member.kind, own.kind) == ("terminated", "terminated")
    assert (member.open_run, own.open_run) == (None, None)


async def test_the_latest_generation_counts(bank: Bank) -> None:
    """An earlier one was undone in a run of its own, which Temporal still has; the next ran in a bulk workflow."""
    bank.open_accounts(200)
    order = alone(1, amount=1000)
    first = await bank.client.start("transfer", order)
    with pytest.raises(WorkflowFailureError):
        await bank.client.temporal.get_workflow_handle(first.id).result()
    await until(lambda: _has_state(bank, first.id, "COMPENSATED"))
    assert (await bank.client.locator.locate(first.id)).run is not None
    bank.query("update account set balance = 5000 where id = 'a1' returning id")
    counts = await bank.start("transfer", [order], again=True)
    assert counts["counts"] == {"COMPLETED": 1}
    later = await bank.client.locator.locate(first.id)
    assert (later.kind, later.row and later.row.view.state) == ("ended", "COMPLETED")
    assert (await bank.client.locator.within_temporal().locate(first.id)).run is not None


async def _has_state(bank: Bank, saga_id: str, state: str) -> bool:
    return bank.states().get(saga_id) == state


async def test_a_saga_that_moves_between_two_questions_is_found(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    bank.open_accounts(200)
    locator = Locator(bank.client.temporal, bank.client.ledger)
    resting = f"resting-{uuid.uuid4().hex[:8]}"

    async def leave() -> None:
        member = (await bank.client.locator.locate(resting)).member
        assert member is not None
        await leave_bulk_workflow(bank.client.locator, member)

    await start_bulk(bank, "resting", [{"id": resting, "rest": "4s"}])
    await wait_until(bank, resting, "RUNNING")
    before_the_next(monkeypatch, locator.ledger, "bulk_claim", leave)
    assert (await locator.locate(resting)).kind == "running"

    async with blocked_accounts(bank):
        bulk = await start_bulk(bank, "transfer", [transfer(1)])
        await wait_until(bank, "t-1", "RUNNING")
        claimed = await locator.ledger.bulk_claim("t-1")
    await bulk.result()
    assert claimed is not None

    answers = iter([claimed])  # it was read just before the saga ended
    read = locator.ledger.bulk_claim

    async def late(saga_id: str) -> Any:
        return next(answers, None) or await read(saga_id)

    monkeypatch.setattr(locator.ledger, "bulk_claim", late)
    ended = await locator.locate("t-1")
    assert (ended.kind, ended.row and ended.row.view.state) == ("ended", "COMPLETED")


async def test_without_the_ledger_only_what_temporal_runs_is_found(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    bank.open_accounts(200)
    single = await bank.client.start("transfer", alone(2))
    await single.result()

    async def down(*_: Any) -> Any:
        raise LedgerUnavailable("the ledger does not answer")

    monkeypatch.setattr(bank.client.ledger, "bulk_claim", down)
    assert (await bank.client.locator.locate(single.id)).kind == "ended"
    with pytest.raises(LedgerUnavailable):
        await bank.client.locator.locate("t-1")
