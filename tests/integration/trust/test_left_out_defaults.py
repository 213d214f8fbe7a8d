"""Starts of one saga whose defaults are left out, or written out, are the same start, whoever remembers the first."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from saga_workers.client import Client
from saga_workers.reconcile.ledger_check import write_row
from saga_workers.start.row_starts import StartRow
from saga_workers.start.single_rows import SingleRowStarter
from saga_workers.start.start_gate import StartGate
from saga_workers.start.start_limits import StartLimits
from saga_workers.start.tally import Tally
from saga_workers.stuck.resumption import start_again
from saga_workers.stuck.verdict import replaced_saga
from saga_workers.temporal.temporal_runs import describe_run
from sagas.errors import RefusedError, UsageError
from sagas.project import Project
from sagas.protocol.payloads import input_digest
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.run_changes import delete_run
from tests.helpers.waiting import until
from tests.integration.bulk.conftest import Bank
from tests.integration.bulk.conftest import bank as bank
from tests.integration.bulk.conftest import bank_project as bank_project
from tests.integration.trust.conftest import Shop

Variant = Callable[[dict[str, Any]], dict[str, Any]]


def left_out(input: dict[str, Any]) -> dict[str, Any]:
    return input


def written_out(input: dict[str, Any]) -> dict[str, Any]:
    return {**input, "text": "ok"}


async def start_plainly(client: Client, saga: str, id: str, input: dict[str, Any]) -> None:
    """Start a saga as any client of Temporal may."""
    queue = client.project.settings.temporal.task_queue
    await client.temporal.start_workflow(saga, input, id=id, task_queue=queue)


async def require_same_start(client: Client, id: str, input: dict[str, Any]) -> None:
    """Both forms of the input find the saga; another input is refused."""
    for variant in (left_out, written_out):
        assert not (await client.start("transfer", variant(input))).started
    with pytest.raises(RefusedError, match=f"{id} has been started with another input"):
        await client.start("transfer", {**input, "text": "another"})


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("variant", [left_out, written_out])
async def test_temporal_and_the_ledger_agree(bank: Bank, variant: Variant) -> None:
    id, input = bank.new_transfer()
    client = bank.client
    await start_plainly(client, "transfer", id, variant(input))
    assert (await finished(client, id))["state"] == "COMPLETED"
    await require_same_start(client, id, input)
    await until(lambda: bank.states() == {id: "COMPLETED"})
    digests = bank.query("select input_digest from saga_run")
    assert digests == [(input_digest(written_out(input)),)]
    bank.query("delete from saga_run")
    assert (await write_row(client.locator, id)).startswith("its row is written")
    assert bank.query("select input_digest from saga_run") == digests
    await delete_run(client.temporal, id)
    await require_same_start(client, id, input)


async def test_the_start_of_a_client_of_the_project_is_the_same(bank: Bank) -> None:
    id, input = bank.new_transfer()
    assert (await bank.client.start("transfer", input)).started
    await require_same_start(bank.client, id, input)


async def test_a_row_of_a_batch_is_the_same(bank: Bank) -> None:
    id, input = bank.new_transfer()
    await start_plainly(bank.client, "transfer", id, input)
    starter, tally = await bank.client.starter("transfer"), Tally(1)
    rows = SingleRowStarter(
        starter, tally, StartLimits(), StartGate(), batch="b", wait_for_end=True, progress=lambda tally: None
    )
    await rows.start_all([StartRow("row 1", id, starter.make_request(written_out(input)))])
    assert (tally.refused, tally.existing, tally.ended) == (0, 1, {"COMPLETED": 1})


async def test_a_start_that_waits_for_a_worker_is_the_same(bank_project: tuple[Project, str]) -> None:
    project, _ = bank_project
    async with await Client.connect(project) as client:
        id = f"t-{uuid.uuid4()}"
        input = {"id": id, "from": "a1", "to": "a2", "amount": 7}
        await start_plainly(client, "transfer", id, input)
        await require_same_start(client, id, input)


async def test_a_start_is_the_same_without_a_ledger(shop: Shop) -> None:
    id = f"greeting-{uuid.uuid4()}"
    async with running_worker(shop.project) as client:
        await start_plainly(client, "greeting", id, {})
        assert (await finished(client, id))["state"] == "COMPLETED"
        for input in ({}, {"text": "hello"}):
            assert not (await client.start("greeting", input, id=id)).started
        with pytest.raises(RefusedError, match="has been started with another input"):
            await client.start("greeting", {"text": "bye"}, id=id)


async def test_a_deleted_saga_is_resumed_with_its_defaults_left_out(bank: Bank) -> None:
    client, id = bank.client, f"r-{uuid.uuid4()}"
    input = {"id": id, "rest": "1h"}
    await start_plainly(client, "resting", id, input)
    await until(lambda: bank.query("select 1 from note where id = %s", id) != [])
    described = await describe_run(client.temporal, id)
    assert described is not None
    assert await replaced_saga(client.locator, bank.project.settings, described) is None
    await delete_run(client.temporal, id)
    location = await client.locator.locate(id)
    with pytest.raises(UsageError, match="was started with another input"):
        await start_again(client, location, input={**input, "text": "another"})
    assert (await start_again(client, location, input=input)).started
