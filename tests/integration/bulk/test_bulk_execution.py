"""Many sagas in one workflow: each with its own outcome, on a real server."""

from __future__ import annotations

import asyncio
import uuid
from datetime import datetime
from typing import Any

import psycopg
import pytest
from temporalio.client import WorkflowFailureError

from saga_workers.bulk.detached_starts import SagaDetacher
from saga_workers.client import Client
from saga_workers.start.start_requests import BulkRow
from sagas.project import Project
from sagas.settings.ledger import LedgerSettings
from tests.helpers.local_worker import running_worker
from tests.helpers.waiting import LIMIT, until
from tests.integration.bulk.conftest import Bank


def transfer(number: int, *, amount: int = 10, to: str | None = None, text: str = "ok") -> dict[str, object]:
    source = f"a{number}"
    return {"id": f"t-{number}", "from": source, "to": to or f"a{number + 100}", "amount": amount, "text": text}


async def test_all_sagas_complete(bank: Bank) -> None:
    bank.open_accounts(200)
    result = await bank.start("transfer", [transfer(number) for number in range(1, 101)])
    assert result == {"counts": {"COMPLETED": 100}, "detached": [], "existing": {}}
    balances = bank.balances()
    assert [balances[f"a{number}"] for number in (1, 100, 101, 200)] == [90, 90, 110, 110]
    assert bank.query("select count(*) from note") == [(100,)]
    assert bank.query("select count(*) from saga_outbox") == [(100,)]
    assert set(bank.states().values()) == {"COMPLETED"}
    assert bank.query("select count(*) from saga_claim") == [(0,)]


async def test_one_saga_does_not_change_the_others(bank: Bank) -> None:
    """A rejection, a violated constraint, an error, and a saga that undoes its first step."""
    bank.open_accounts(200)
    sagas = [transfer(number) for number in range(1, 41)]
    sagas[3] = transfer(4, amount=1000)
    sagas[5] = transfer(6, to="nobody")
    sagas[7] = transfer(8, text="fails")
    sagas[9] = transfer(10, text="twice")
    result = await bank.start("transfer", sagas)
    assert result["counts"] == {"COMPLETED": 36, "COMPENSATED": 4}
    states = bank.states()
    assert {id for id, state in states.items() if state == "COMPENSATED"} == {"t-4", "t-6", "t-8", "t-10"}
    balances = bank.balances()
    for number in range(1, 41):
        failed = number in (4, 6, 8, 10)
        assert balances[f"a{number}"] == (100 if failed else 90)
        assert balances[f"a{number + 100}"] == (100 if failed else 110)
    assert bank.query("select count(*) from note") == [(36,)]
    assert bank.query("select count(*) from saga_outbox") == [(36,)]


async def test_an_id_runs_once(bank: Bank) -> None:
    bank.open_accounts(200)
    await bank.start("transfer", [transfer(1), transfer(2, amount=1000)])
    again = await bank.start("transfer", [transfer(1), transfer(2, amount=1000), transfer(3)])
    assert again["counts"] == {"COMPLETED": 1}
    assert again["existing"] == {
        "t-1": {"state": "COMPLETED", "same": True},
        "t-2": {"state": "COMPENSATED", "same": True},
    }
    assert bank.balances()["a1"] == 90


async def test_undone_sagas_are_started_again(bank: Bank) -> None:
    bank.open_accounts(200)
    await bank.start("transfer", [transfer(1), transfer(2, amount=1000)])
    bank.query("update account set balance = 5000 where id = 'a2'")
    again = await bank.start("transfer", [transfer(1), transfer(2, amount=1000)], again=True)
    assert again["counts"] == {"COMPLETED": 1}
    assert bank.balances()["a2"] == 4000
    generations = bank.query("select distinct generation from saga_guard where saga_id = 't-2' order by 1")
    assert generations == [(2,)]


async def test_a_batch_action_takes_all_items(bank: Bank) -> None:
    bank.open_accounts(50)
    sagas = [{"id": f"w-{n}", "account": f"a{n}", "amount": 1000 if n % 10 == 0 else 10} for n in range(1, 51)]
    result = await bank.start("withdrawal", sagas)
    assert result["counts"] == {"COMPLETED": 45, "COMPENSATED": 5}
    assert sorted(bank.balances().values()) == [90] * 45 + [100] * 5


async def test_a_batch_action_serves_single_sagas(bank: Bank) -> None:
    bank.open_accounts(2)
    run = await bank.client.start("withdrawal", {"id": "alone-1", "account": "a1", "amount": 10})
    await run.result()
    assert bank.balances() == {"a1": 90, "a2": 100}


async def test_a_saga_that_waits_leaves_and_goes_on_alone(bank: Bank) -> None:
    result = await bank.start("waiting", [{"id": f"x-{n}", "waits": n == 2} for n in range(1, 5)])
    assert result["counts"] == {"COMPLETED": 3, "DETACHED": 1}
    assert result["detached"] == ["x-2"]
    await bank.client.signal("x-2", "go")
    handle = bank.client.temporal.get_workflow_handle("x-2")
    await handle.result()
    view = await bank.client.view("x-2")
    assert view.state == "COMPLETED"
    assert bank.query("select count(*) from note") == [(4,)]


async def test_a_short_wait_is_inside_the_bulk_workflow(bank: Bank) -> None:
    """One that is undone after its wait, too; only the longest leaves."""
    rests = {"r-0": "0s", "r-1": "1s", "r-2": "2s", "r-7": "7s"}
    sagas = [{"id": id, "rest": rest, "text": "refused" if id == "r-1" else "ok"} for id, rest in rests.items()]
    result = await bank.start("resting", sagas)
    assert result["counts"] == {"COMPLETED": 2, "COMPENSATED": 1, "DETACHED": 1}
    assert result["detached"] == ["r-7"]
    await bank.client.temporal.get_workflow_handle("r-7").result()
    assert dict(bank.query("select id, text from note")) == {"r-0": "ok", "r-2": "ok", "r-7": "ok"}
    for id, length in (("r-1", 1), ("r-2", 2), ("r-7", 7)):
        [rest] = [step for step in (await bank.client.view(id)).steps if step.step == "rest"]
        assert rest.state == "DONE"
        assert rest.started_at is not None
        assert rest.ended_at is not None
        waited = datetime.fromisoformat(rest.ended_at) - datetime.fromisoformat(rest.started_at)
        assert waited.total_seconds() >= length


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["saga.bulk", "saga.batch"])
@pytest.mark.parametrize("id", ["bulk~by-hand", "batch~by-hand", "by-hand"])
async def test_a_start_by_hand_without_an_argument_is_refused_or_ends(bank: Bank, kind: str, id: str) -> None:
    """Any client can start them; a workflow task that fails would be repeated until somebody notices."""
    task_queue = bank.project.settings.temporal.task_queue
    handle = await bank.client.temporal.start_workflow(kind, id=f"{id}-{uuid.uuid4()}", task_queue=task_queue)
    if kind == "saga.batch" and id.startswith("batch~"):
        assert await handle.query("__temporal_workflow_metadata") is not None  # its first workflow task has succeeded
        return
    with pytest.raises(WorkflowFailureError) as refused:
        await asyncio.wait_for(handle.result(), LIMIT)
    assert getattr(refused.value.cause, "type", None) == "SagaRefused"


async def test_a_saga_leaves_although_an_earlier_run_had_its_id(bank: Bank) -> None:
    """The ledger does not know that run: what the bulk workflow has begun must go on all the same."""
    await (await bank.client.start("waiting", {"id": "old-1"})).result()

    async def written() -> bool:
        return bool(await asyncio.to_thread(bank.query, "select 1 from saga_run"))

    await until(written)
    bank.query("delete from saga_run")
    bank.query("delete from saga_guard")
    bank.query("delete from note")
    result = await bank.start("waiting", [{"id": "old-1", "waits": True}])
    assert result["detached"] == ["old-1"]
    await bank.client.signal("old-1", "go")
    await bank.client.temporal.get_workflow_handle("old-1").result()
    assert bank.query("select count(*) from note") == [(1,)]


async def test_a_cancelled_bulk_workflow_undoes_its_sagas(bank: Bank) -> None:
    bank.open_accounts(20)
    with psycopg.connect(bank.url) as blocker:
        blocker.execute("lock table note in access exclusive mode")  # the last step of every saga waits
        starter = await bank.client.starter("transfer")
        inputs = [transfer(number, to=f"a{number + 10}") for number in range(1, 6)]
        handle = await starter.start_bulk([BulkRow(str(input["id"]), starter.make_request(input)) for input in inputs])

        async def credited() -> bool:
            query = "select 1 from account where id = 'a11' and balance = 110"
            return bool(await asyncio.to_thread(bank.query, query))

        await until(credited)
        await handle.cancel()
    result = await handle.result()
    assert result["counts"] == {"COMPENSATED": 5}
    assert set(bank.balances().values()) == {100}
    assert bank.query("select count(*) from note") == [(0,)]


async def test_starts_whose_bulk_workflow_is_refused_run_singly(bank_project: tuple[Project, str]) -> None:
    """A worker that has no ledger yet, as in a rollout, refuses the workflow, and nothing of it was started."""
    project, url = bank_project
    without = Project(project.settings.model_copy(update={"ledger": LedgerSettings()}))
    async with running_worker(without):
        client = await Client.connect(project)
        bank = Bank(client, project, url)
        bank.open_accounts(200)
        inputs = [{**transfer(number), "id": f"no-ledger-{number}"} for number in (1, 2)]
        handles = await client.start_many("transfer", inputs, bulk=True)
        assert await asyncio.gather(*(handle.result() for handle in handles)) == [{"moved": 10}] * 2
        await client.close()
    assert bank.query("select count(*) from note") == [(2,)]


async def test_a_bulk_workflow_that_is_cancelled_while_a_saga_leaves_cancels_that_one(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, started, may_answer = SagaDetacher.__call__, asyncio.Event(), asyncio.Event()

    async def answer_late(*arguments: Any) -> dict[str, str]:
        refused = await honest(*arguments)
        started.set()
        await may_answer.wait()
        return refused

    monkeypatch.setattr(SagaDetacher, "__call__", answer_late)
    starter = await bank.client.starter("waiting")
    handle = await starter.start_bulk([BulkRow("departing", starter.make_request({"id": "departing", "waits": True}))])
    await asyncio.wait_for(started.wait(), LIMIT)
    await handle.cancel()
    await handle.query("counts")  # the workflow task of the cancel is over
    may_answer.set()
    result = await asyncio.wait_for(handle.result(), LIMIT)
    assert result["counts"] == {"DETACHED": 1}
    with pytest.raises(WorkflowFailureError):
        await asyncio.wait_for(bank.client.temporal.get_workflow_handle("departing").result(), LIMIT)
    assert (await bank.client.view("departing")).state == "COMPENSATED"
    assert bank.query("select count(*) from note") == [(0,)]
