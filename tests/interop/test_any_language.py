"""Any Temporal client starts a saga, any Temporal worker serves a step: processes that import nothing of ours."""

from __future__ import annotations

import ast
import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sagas import Rejected, Step, action
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.processes import TemporalServer

HERE = Path(__file__).parent
INTEROP = """
saga: interop
input:
  type: object
  required: [customer, points]
  properties: {customer: {type: string}, points: {type: integer}, close: {type: boolean, default: true}}
steps:
  - id: add
    uses: loyalty.add
    task_queue: QUEUE
    with: {customer: "${{ input.customer }}", points: "${{ input.points }}"}
    compensate:
      uses: loyalty.remove
      with: {customer: "${{ input.customer }}"}
  - id: close
    uses: books.close
    with: {possible: "${{ input.close }}"}
    pivot: true
output: {balance: "${{ steps.add.result.balance }}"}
"""


@action("books.close")
async def close(step: Step, possible: bool) -> None:
    if not possible:
        raise Rejected("the books are closed")


@pytest.fixture
def loyalty(temporal: TemporalServer) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The foreign worker on a task queue of its own."""
    queue = f"loyalty-{uuid.uuid4()}"
    command = [sys.executable, str(HERE / "plain_worker.py"), temporal.address, "--task-queue", queue]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        assert json.loads(worker.stdout.readline()) == {"ready": True}
        yield queue, worker
    finally:
        worker.terminate()
        worker.wait(30)


async def start(
    temporal: TemporalServer, queue: str, folder: Path, *, saga_id: str | None = None, **changed: Any
) -> tuple[str, dict[str, Any]]:
    """Run our worker here and the plain client as a process; gives the saga's id and what the client saw."""
    project = make_project(folder, {"interop": INTEROP.replace("QUEUE", queue)}, [close], address=temporal.address)
    saga_id = saga_id or f"interop-{uuid.uuid4()}"
    async with running_worker(project):
        client = await asyncio.create_subprocess_exec(
            sys.executable,
            str(HERE / "plain_client.py"),
            temporal.address,
            *("--task-queue", project.settings.temporal.task_queue, "--id", saga_id),
            *("--input", json.dumps({"customer": "c-1", "points": 5, **changed})),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await asyncio.wait_for(client.communicate(), 60)
    return saga_id, json.loads(output)


def requests(worker: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """The requests of the foreign worker, after its exit."""
    worker.terminate()
    return [json.loads(line) for line in worker.communicate(timeout=30)[0].splitlines()]


@pytest.mark.parametrize("program", ["plain_worker.py", "plain_client.py"])
def test_the_programs_import_only_temporal(program: str) -> None:
    tree = ast.parse((HERE / program).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    roots = {name.split(".")[0] for name in names}
    assert roots - set(sys.stdlib_module_names) == {"temporalio"}


async def test_completed(temporal: TemporalServer, loyalty: Any, tmp_path: Path) -> None:
    queue, worker = loyalty
    saga_id, seen = await start(temporal, queue, tmp_path)
    assert seen == {"status": "completed", "result": {"balance": 5}}
    [request] = requests(worker)
    asked = {"key": f"{saga_id}/add", "saga_id": saga_id, "step": "add", "op": "do", "generation": 1}
    assert request["argument"].pop("_saga").items() >= asked.items()
    assert request == {"activity": "loyalty.add", "argument": {"customer": "c-1", "points": 5}}


async def test_rejected_by_the_foreign_worker(temporal: TemporalServer, loyalty: Any, tmp_path: Path) -> None:
    queue, worker = loyalty
    _, seen = await start(temporal, queue, tmp_path, points=5000)
    assert (seen["status"], seen["type"]) == ("failed", "SagaCompensated")
    assert seen["story"]["reason"]["kind"] == "rejected"
    assert seen["story"]["reason"]["message"] == "more than 1000 points at once"
    assert [request["activity"] for request in requests(worker)] == ["loyalty.add"]


@pytest.mark.slow
async def test_undone_by_the_foreign_worker(temporal: TemporalServer, loyalty: Any, tmp_path: Path) -> None:
    queue, worker = loyalty
    saga_id, seen = await start(temporal, queue, tmp_path, close=False)
    assert (seen["type"], seen["story"]["state"]) == ("SagaCompensated", "COMPENSATED")
    assert seen["story"]["steps"][0]["compensation"]["state"] == "DONE"
    done, undo = requests(worker)
    assert (done["activity"], undo["activity"]) == ("loyalty.add", "loyalty.remove")
    assert (undo["argument"]["_saga"]["key"], undo["argument"]["_saga"]["op"]) == (f"{saga_id}/add/undo", "undo")
    assert {request["argument"]["_saga"]["forward_key"] for request in (done, undo)} == {f"{saga_id}/add"}


async def test_a_foreign_worker_refuses_an_undone_key(temporal: TemporalServer, loyalty: Any, tmp_path: Path) -> None:
    """A plain client may start an id again: Temporal lets it, and the participant knows better."""
    queue, worker = loyalty
    saga_id, seen = await start(temporal, queue, tmp_path, close=False)
    assert seen["story"]["state"] == "COMPENSATED"
    _, seen = await start(temporal, queue, tmp_path, saga_id=saga_id)
    assert (seen["type"], seen["story"]["state"]) == ("SagaCompensated", "COMPENSATED")
    assert (seen["story"]["reason"]["kind"], seen["story"]["reason"]["step"]) == ("late", "add")
    assert (seen["story"]["steps"][0]["state"], seen["story"]["steps"][0]["outcome"]) == ("COMPENSATED", "late")
    asked = [request["activity"] for request in requests(worker)]
    assert asked == ["loyalty.add", "loyalty.remove", "loyalty.add"], "late: there is nothing more to undo"


async def test_bad_input_of_a_foreign_client_is_refused(temporal: TemporalServer, loyalty: Any, tmp_path: Path) -> None:
    queue, worker = loyalty
    _, seen = await start(temporal, queue, tmp_path, points="many")
    assert (seen["status"], seen["type"]) == ("failed", "SagaRefused")
    assert requests(worker) == []
