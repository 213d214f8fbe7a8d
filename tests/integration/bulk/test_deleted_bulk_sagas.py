"""Sagas of a bulk workflow whose run was deleted in Temporal: the guard has what they were started with."""

from __future__ import annotations

import contextlib

import pytest
from temporalio.client import WorkflowFailureError

from saga_activities.connections import DatabaseConnections
from saga_workers.location.traces import recorded_effects
from saga_workers.start.start_requests import BulkRow
from saga_workers.stuck.continuation import continue_saga
from saga_workers.stuck.resumption import start_again
from saga_workers.stuck.stuck_sagas import list_stuck, remedy
from saga_workers.stuck.verdict import judge
from saga_workers.views.saga_list import SagaFilter
from saga_workers.worker import guard_retention
from saga_workers.worker.guard_retention import GuardRetention
from sagas.errors import RefusedError
from tests.helpers import run_changes
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import take_id
from tests.helpers.waiting import until
from tests.integration.bulk.conftest import Bank
from tests.integration.cli.conftest import CommandLine


async def delete_run(bank: Bank, workflow_id: str, saga_id: str) -> None:
    """Delete the run as an operator does, and wait until nothing runs the saga any more."""
    await run_changes.delete_run(bank.client.temporal, workflow_id)

    async def gone() -> bool:
        return (await bank.client.locator.locate(saga_id)).open_run is None

    await until(gone)


async def start_deleted_again(bank: Bank, id: str) -> None:
    location = await bank.client.locator.locate(id)
    assert await judge(bank.client.locator, bank.project.settings, location) == "deleted"
    await start_again(bank.client, location)


async def test_a_deleted_saga_that_had_left_is_started_again(bank: Bank) -> None:
    await bank.start("waiting", [{"id": "left-1", "waits": True}], batch="monday")
    assert (await bank.client.view("left-1")).labels["batch"] == "monday"
    await delete_run(bank, "left-1", "left-1")
    await start_deleted_again(bank, "left-1")
    assert (await bank.client.view("left-1")).labels["batch"] == "monday"
    await bank.client.signal("left-1", "go")
    await bank.client.temporal.get_workflow_handle("left-1").result()
    assert (await bank.client.view("left-1")).state == "COMPLETED"
    assert bank.query("select id, text from note") == [("left-1", "first")]


@pytest.mark.slow
async def test_a_saga_of_a_deleted_bulk_workflow_is_started_again(bank: Bank) -> None:
    starter = await bank.client.starter("resting")
    inputs = [{"id": "in-1", "rest": "4s"}, {"id": "in-2", "rest": "4s", "text": "refused"}]
    rows = [BulkRow(input["id"], starter.make_request(input)) for input in inputs]
    handle = await starter.start_bulk(rows, batch="tuesday")

    async def noted() -> bool:
        return bank.query("select count(*) from note") == [(2,)]

    await until(noted)
    await delete_run(bank, handle.id, "in-1")
    listed = list_stuck(bank.client.locator, SagaFilter(saga="resting"), limit=1000)
    stuck = {view.id: remedy(view) async for view in listed}
    for input in inputs:  # other tests may have left stuck sagas on this server
        assert stuck[input["id"]] == f"saga resume {input['id']}"
    with pytest.raises(RefusedError, match="start it again with `saga resume in-1`"):
        await continue_saga(bank.client.locator, "in-1", "somebody")
    for input in inputs:
        await start_deleted_again(bank, input["id"])
        with contextlib.suppress(WorkflowFailureError):  # a compensated saga is Failed in Temporal
            await bank.client.temporal.get_workflow_handle(input["id"]).result()
    views = [await bank.client.view(input["id"]) for input in inputs]
    assert [view.state for view in views] == ["COMPLETED", "COMPENSATED"]
    assert {view.labels["batch"] for view in views} == {"tuesday"}
    assert bank.query("select id, text from note") == [("in-1", "second")]


async def test_a_resume_releases_the_claim_of_a_deleted_saga_without_effects(
    bank: Bank, capsys: pytest.CaptureFixture[str]
) -> None:
    starter = await bank.client.starter("resting")
    handle = await starter.start_bulk([BulkRow("idle-1", starter.make_request({"id": "idle-1", "rest": "4s"}))])

    async def noted() -> bool:
        return bank.query("select count(*) from note") == [(1,)]

    await until(noted)
    await delete_run(bank, handle.id, "idle-1")
    bank.query("with gone as (delete from saga_guard where saga_id = 'idle-1' returning 1) select count(*) from gone")
    locator = bank.client.locator
    assert await judge(locator, bank.project.settings, await locator.locate("idle-1")) == "claim left"
    resumed = await CommandLine(bank.project.settings.root, capsys, bank.client).saga("resume", "idle-1")
    released = "idle-1: its claim is deleted, because it had no effect; start it again\n"
    assert (resumed.code, resumed.out) == (0, released)
    assert bank.query("select saga_id from saga_claim where saga_id = 'idle-1'") == []


async def test_the_purge_keeps_the_rows_of_a_deleted_bulk_workflow(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them nothing would tell that its sagas have effects, and a start would make these once more."""
    starter = await bank.client.starter("resting")
    handle = await starter.start_bulk([BulkRow("kept-1", starter.make_request({"id": "kept-1", "rest": "4s"}))])

    async def noted() -> bool:
        return bank.query("select count(*) from note") == [(1,)]

    await until(noted)
    await delete_run(bank, handle.id, "kept-1")
    monkeypatch.setattr(guard_retention, "HORIZON_MARGIN", 0.0)
    databases = DatabaseConnections(bank.project.settings.sql_connections(), pool_size=1)
    await GuardRetention(bank.client.locator, databases, retention=0.0, longest_transaction=lambda: 0.0).run_once()
    await databases.close()
    await start_deleted_again(bank, "kept-1")
    await bank.client.temporal.get_workflow_handle("kept-1").result()
    assert bank.query("select id, text from note") == [("kept-1", "second")]


async def test_the_origin_is_stored_once_and_is_that_of_a_saga_on_its_own(bank: Bank) -> None:
    inputs = [{"id": f"origin-{n}", "from": "a1", "to": "a2", "amount": 1} for n in (1, 2)]
    bank.open_accounts(2)
    await bank.start("transfer", inputs[:1])
    run = await bank.client.start("transfer", inputs[1])
    await run.result()
    origins = []
    for input in inputs:
        effects = await recorded_effects(bank.project.settings, input["id"])
        own = f"saga_id = '{input['id']}' and op = 'do'"
        rows = bank.query(f"select origin like '%\"input\"%' from saga_guard where {own}")
        assert (sum(row == (True,) for row in rows), (None,) in rows) == (1, False)
        origin = effects[0].origin
        assert origin is not None
        assert all(effect.origin == origin for effect in effects)
        assert origin.input == {**input, "text": "ok"}
        assert origin.ledger == await bank.client.locator.ledger.identity() != ""
        origins.append((origin.saga, origin.digest, origin.generation, origin.variables, origin.parent))
    assert origins[0] == origins[1]


async def test_a_later_effect_of_another_input_is_not_its_own(bank: Bank) -> None:
    """The other run leaves the first step out, and has the same arguments for the second."""
    id, client, sums = "later-1", bank.client, "select step, sum(amount)::int from moved group by step order by step"
    await bank.start("branching", [{"id": id}])
    queue = bank.project.settings.temporal.task_queue
    await take_id(client.temporal, id, "branching", {"id": id, "first": False}, task_queue=queue)
    story = await finished(client, id)
    assert [(at["step"], at["why"]) for at in story["parked"]] == [("second", "key used with other arguments")]
    await client.resolve(id, {"step": "second", "decision": "compensate", "reason": "a test", "who": "ada"})
    assert (await finished(client, id))["state"] == "COMPENSATED"
    assert bank.query(sums) == [("first", 1), ("second", 1)]
    await start_again(client, await client.locator.locate(id))
    await client.cancel(id)
    assert (await finished(client, id))["state"] == "COMPENSATED"
    assert bank.query(sums) == [("first", 0), ("second", 0)]
