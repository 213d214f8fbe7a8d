"""A saga that Temporal does not accept on its own, or whose state no payload carries, holds up no other saga."""

from __future__ import annotations

import asyncio
import base64
import random
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.bulk.detached_starts import SagaDetacher
from saga_workers.start import saga_starter
from saga_workers.start.start_requests import BulkRow
from sagas.errors import UsageError
from sagas.project import Project
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.waiting import LIMIT, until
from tests.integration.bulk.conftest import Bank

REPEATED = base64.b64encode(random.Random(7).randbytes(540 * 1024)).decode()
"""The state has it three times, as the input and as arguments of two steps: above two MiB, unless that is noticed."""

PRINTABLE = bytes(ord("!") + byte % 94 for byte in range(256))
HUGE = random.Random(7).randbytes(1900 * 1024).translate(PRINTABLE).decode("ascii")
"""No compression makes this small enough for a payload that has more than an input."""

LARGE = """
saga: large
id: "${{ input.id }}"
input:
  type: object
  properties:
    id: {type: string}
    taken: {type: string, default: ""}
    document: {type: string, default: ""}
    waits: {type: boolean, default: false}
steps:
  - {id: keep, uses: bank.keep, with: {document: "${{ input.taken }}"}, compensate: bank.drop}
  - {id: again, uses: bank.keep, with: {document: "${{ input.taken }}"}, compensate: bank.drop}
  - {id: pause, uses: wait, with: {signal: go}, if: "input.waits"}
"""

ACTIONS = """

@action("bank.keep", connection="bank")
async def keep(step: Step, document: str) -> None:
    pass


@action("bank.drop", connection="bank")
async def drop(step: Step, document: str) -> None:
    pass
"""


@pytest.fixture
def large_project(bank_project: tuple[Project, str], tmp_path: Path) -> tuple[Project, str]:
    folder = tmp_path / "project"
    (folder / "large.saga.yaml").write_text(LARGE)
    with (folder / "actions.py").open("a") as actions:
        actions.write(ACTIONS)
    project, url = bank_project
    return Project(project.settings), url


async def start(bank: Bank, saga: str, inputs: list[dict[str, Any]]) -> WorkflowHandle[Any, Any]:
    starter = await bank.client.starter(saga)
    return await starter.start_bulk([BulkRow(str(input["id"]), starter.make_request(input)) for input in inputs])


@pytest.fixture
def any_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client may not refuse an input from which a state becomes too large."""
    monkeypatch.setattr(saga_starter, "MAX_BULK_INPUT", 10**9)


async def shown_failure(handle: WorkflowHandle[Any, Any]) -> str:
    """Failure messages of the pending activities, as Temporal shows them."""
    pending = (await handle.describe()).raw_description.pending_activities
    return "; ".join(activity.last_failure.message for activity in pending)


@pytest.mark.usefixtures("any_input")
async def test_the_end_of_a_large_saga_is_recorded_without_its_machine(
    large_project: tuple[Project, str],
) -> None:
    project, url = large_project
    async with running_worker(project) as client:
        bank = Bank(client, project, url)
        inputs = [{"id": "state-large", "document": HUGE}, {"id": "state-small"}]
        result = await asyncio.wait_for((await start(bank, "large", inputs)).result(), LIMIT)
        assert result["counts"] == {"COMPLETED": 2}
        assert bank.states() == {"state-large": "COMPLETED", "state-small": "COMPLETED"}
        assert bank.query("select count(*) from saga_claim") == [(0,)]
        large, small = await client.view("state-large"), await client.view("state-small")
        assert "bytes, which is more than Temporal accepts" in (large.incomplete or "")
        assert [step.state for step in large.steps] == ["DONE", "DONE", "SKIPPED"]
        assert (large.can_undo, small.can_undo) == (False, True)
        await client.close()


@pytest.mark.slow
async def test_a_saga_whose_steps_take_one_large_document_leaves_and_can_be_undone(
    large_project: tuple[Project, str],
) -> None:
    project, url = large_project
    async with running_worker(project) as client:
        bank = Bank(client, project, url)
        inputs = [{"id": f"repeats-{waits}", "taken": REPEATED, "waits": waits} for waits in (True, False)]
        handle = await start(bank, "large", inputs)
        result = await asyncio.wait_for(handle.result(), LIMIT)
        # The other one leaves, too, if its chunk gets no answer in time on a busy machine.
        assert result["counts"] in ({"DETACHED": 1, "COMPLETED": 1}, {"DETACHED": 2})
        await client.signal("repeats-True", "go")
        for id in ("repeats-True", "repeats-False"):
            assert (await finished(client, id))["state"] == "COMPLETED"
            assert (await client.view(id)).can_undo
            undo = await client.undo(id, reason="test", who="me")
            await client.temporal.get_workflow_handle(undo.id).result()
            assert (await client.view(id)).state == "COMPENSATED"
        await client.close()


async def test_a_saga_with_a_huge_input_is_not_started_in_bulk(large_project: tuple[Project, str]) -> None:
    project, url = large_project
    async with running_worker(project) as client:
        bank = Bank(client, project, url)
        with pytest.raises(UsageError, match=r"of huge-2 has [12],[0-9,]+ bytes, and bulk execution takes 1,572,864"):
            await start(bank, "large", [{"id": "huge-1"}, {"id": "huge-2", "document": HUGE}])
        assert bank.query("select count(*) from saga_claim") == [(0,)]
        await client.close()


@pytest.mark.slow
async def test_an_undo_whose_state_no_payload_carries_is_refused(large_project: tuple[Project, str]) -> None:
    project, _ = large_project
    async with running_worker(project) as client:
        run = await client.start("large", {"id": "alone-large", "document": HUGE})
        await run.result()
        undo = await client.undo("alone-large", reason="test", who="me")
        with pytest.raises(WorkflowFailureError) as failed:
            await client.temporal.get_workflow_handle(undo.id).result()
        assert "alone-large can only be undone by hand: its state has" in str(failed.value.cause)
        await client.close()


@pytest.mark.slow
@pytest.mark.usefixtures("any_input")
async def test_others_leave_beside_a_saga_with_a_large_state(large_project: tuple[Project, str]) -> None:
    project, url = large_project
    async with running_worker(project) as client:
        bank = Bank(client, project, url)
        handle = await start(
            bank,
            "large",
            [{"id": "leaves-large", "document": HUGE, "waits": True}]
            + [{"id": f"leaves-{number}", "waits": True} for number in (1, 2)],
        )

        async def shown() -> bool:
            return "more than Temporal accepts" in await shown_failure(handle)

        await until(shown)
        for number in (1, 2):
            await client.signal(f"leaves-{number}", "go")
            await client.temporal.get_workflow_handle(f"leaves-{number}").result()
        assert (await handle.query("counts")) == {"DETACHED": 2, "RUNNING": 1}
        await handle.terminate()
        await client.close()


async def test_a_saga_that_temporal_refuses_leaves_later(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, refusing = SagaDetacher._start, ["refused-1"]

    async def refuse(self: Any, request: Any, summary: Any, machine: Any) -> None:
        if summary["saga_id"] in refusing:
            raise RPCError("blob data size exceeds limit.", RPCStatusCode.INVALID_ARGUMENT, b"")
        await honest(self, request, summary, machine)

    monkeypatch.setattr(SagaDetacher, "_start", refuse)
    handle = await start(bank, "waiting", [{"id": f"refused-{number}", "waits": True} for number in (1, 2, 3)])

    async def shown() -> bool:
        return "Temporal refuses its workflow: the request is too large" in await shown_failure(handle)

    await until(shown)
    for number in (2, 3):
        await bank.client.signal(f"refused-{number}", "go")
        await bank.client.temporal.get_workflow_handle(f"refused-{number}").result()
    refusing.clear()
    result = await asyncio.wait_for(handle.result(), LIMIT)
    assert sorted(result["detached"]) == ["refused-1", "refused-2", "refused-3"]
    await bank.client.signal("refused-1", "go")
    await bank.client.temporal.get_workflow_handle("refused-1").result()
