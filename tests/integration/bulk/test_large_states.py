"""A saga that Temporal does not accept on its own, or whose state no payload carries, holds up no other saga."""

from __future__ import annotations

import asyncio
import base64
import random
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.control.detached_starts import SagaDetacher
from saga_workers.control.start import BulkRow
from sagas.settings.project import Project
from tests.helpers.command_processes import eventually
from tests.helpers.local_worker import running_worker
from tests.integration.bulk.conftest import Bank

DOCUMENT = base64.b64encode(random.Random(7).randbytes(540 * 1024)).decode()
"""The input, and the arguments of two steps: the state has it three times, which does not compress to two MiB."""

LARGE = """
saga: large
id: "${{ input.id }}"
input:
  type: object
  properties: {id: {type: string}, document: {type: string}, waits: {type: boolean, default: false}}
steps:
  - {id: keep, uses: bank.keep, with: {document: "${{ input.document }}"}, compensate: bank.drop}
  - {id: again, uses: bank.keep, with: {document: "${{ input.document }}"}, compensate: bank.drop}
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
    return await starter.start_bulk([BulkRow(str(one["id"]), starter.make_request(one)) for one in inputs])


async def shown_failure(handle: WorkflowHandle[Any, Any]) -> str:
    """What Temporal shows of the activity that is repeated."""
    pending = (await handle.describe()).raw_description.pending_activities
    return "; ".join(one.last_failure.message for one in pending)


async def test_the_end_of_a_large_saga_is_recorded_without_its_machine(
    large_project: tuple[Project, str],
) -> None:
    project, url = large_project
    async with running_worker(project) as client:
        bank = Bank(client, project, url)
        inputs = [{"id": "state-large", "document": DOCUMENT}, {"id": "state-small", "document": ""}]
        result = await asyncio.wait_for((await start(bank, "large", inputs)).result(), 60)
        assert result["counts"] == {"COMPLETED": 2}
        assert bank.states() == {"state-large": "COMPLETED", "state-small": "COMPLETED"}
        assert bank.query("select count(*) from saga_claim") == [(0,)]
        large, small = await client.view("state-large"), await client.view("state-small")
        assert "bytes, which is more than Temporal accepts" in (large.incomplete or "")
        assert [step.state for step in large.steps] == ["DONE", "DONE", "SKIPPED"]
        assert (large.can_undo, small.can_undo) == (False, True)
        await client.close()


async def test_others_leave_beside_a_saga_with_a_large_state(large_project: tuple[Project, str]) -> None:
    project, url = large_project
    async with running_worker(project) as client:
        bank = Bank(client, project, url)
        handle = await start(
            bank,
            "large",
            [{"id": "leaves-large", "document": DOCUMENT, "waits": True}]
            + [{"id": f"leaves-{number}", "document": "", "waits": True} for number in (1, 2)],
        )

        async def shown() -> bool:
            return "more than Temporal accepts" in await shown_failure(handle)

        await eventually(shown)
        for number in (1, 2):
            await client.signal(f"leaves-{number}", "go")
            await client.temporal.get_workflow_handle(f"leaves-{number}").result()
        assert (await handle.query("counts")) == {"LEFT": 2, "RUNNING": 1}
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

    await eventually(shown)
    for number in (2, 3):
        await bank.client.signal(f"refused-{number}", "go")
        await bank.client.temporal.get_workflow_handle(f"refused-{number}").result()
    refusing.clear()
    result = await asyncio.wait_for(handle.result(), 60)
    assert sorted(result["left"]) == ["refused-1", "refused-2", "refused-3"]
    await bank.client.signal("refused-1", "go")
    await bank.client.temporal.get_workflow_handle("refused-1").result()
