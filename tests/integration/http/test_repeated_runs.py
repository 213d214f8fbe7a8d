"""A run that Temporal's reset has made calls a participant again: what it answers then is not about a first request."""

from __future__ import annotations

import asyncio
import uuid
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from saga_workers.client import Client
from sagas import action
from sagas.settings import HttpService
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.payment_server import PaymentServer
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import LIMIT, until

BOOK = """
saga: book
steps:
  - {id: count, uses: count_runs, effect: none}
  - id: charge
    uses: http
    with: {connection: crm, method: POST, path: /charges, json: {account: h-1, amount: "12.50", of: "${{ OF }}"}}
    retry: {max_attempts: 2, initial_interval: 100ms}
    compensate: {uses: http, with: {connection: crm, method: POST, path: /refunds, json: {}}}
  - {id: approved, uses: wait, with: {signal: approved}}
"""
FIRST_TASK = 4
"""The event at which the first workflow task of a saga is completed."""


async def reset(client: Client, id: str) -> None:
    temporal = client.temporal
    run_id = (await temporal.get_workflow_handle(id).describe()).run_id
    request = ResetWorkflowExecutionRequest(
        namespace=temporal.namespace,
        workflow_execution=WorkflowExecution(workflow_id=id, run_id=run_id),
        reason="a test",
        workflow_task_finish_event_id=FIRST_TASK,
        request_id=f"reset-{id}",
    )
    await temporal.workflow_service.reset_workflow_execution(request)


async def is_waiting(client: Client, id: str) -> bool:
    rows = (await client.show(id))["steps"]
    return [row["state"] for row in rows if row["id"] == "approved"] == ["RUNNING"]


async def charged_and_reset(
    temporal: TemporalServer, server: PaymentServer, folder: Path, varies: str, **options: Any
) -> dict[str, Any]:
    """The end of a saga that was approved in the run of a reset. ``varies``: an expression in the body of its charge"""
    runs = count(1)

    @action("count_runs")
    async def count_runs() -> int:
        return next(runs)

    crm = HttpService(name="crm", root=folder, url_setting=server.url, **options)
    project = make_project(
        folder,
        {"book": BOOK.replace("OF", varies)},
        [count_runs],
        address=temporal.address,
        options={"crm": crm},
    )
    async with running_worker(project) as client:
        id = (await client.start("book", {}, id=f"repeated-{uuid.uuid4()}")).id

        await until(lambda: is_waiting(client, id), "the charge is made")
        before = await client.show(id)
        await reset(client, id)
        await client.temporal.get_workflow_handle(id).signal("approved", {})
        story = await finished(client, id)
        assert story["started_at"] == before["started_at"]
        return story


async def test_the_saga_has_started_when_its_first_run_did(
    temporal: TemporalServer, server: PaymentServer, tmp_path: Path
) -> None:
    story = await charged_and_reset(temporal, server, tmp_path, "string(saga.started_at)")
    assert (story["state"], story["steps"][1]["attempts"]) == ("COMPLETED", 1)
    assert (server.ledger()["balance"], server.ledger()["undone"]) == ("12.50", [])


@pytest.mark.parametrize("remembers", [False, True])
async def test_a_key_that_was_used_with_other_arguments_is_undone(
    temporal: TemporalServer, server: PaymentServer, tmp_path: Path, remembers: bool
) -> None:
    """The service answers 422, as the draft of the header Idempotency-Key wants it."""
    story = await charged_and_reset(temporal, server, tmp_path, "steps.count.result", remembers_rejections=remembers)
    charge = story["steps"][1]
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "rejected")
    assert (charge["state"], charge["outcome"], charge["attempts"]) == ("COMPENSATED", "unknown", 2)
    assert "another body" in charge["error"]["message"]
    assert (server.ledger()["balance"], server.ledger()["undone"]) == ("0.00", [f"{story['id']}/charge"])


async def test_a_rollback_before_the_new_run_has_come_to_a_call_undoes_it(
    temporal: TemporalServer, server: PaymentServer, tmp_path: Path
) -> None:
    """The run before has made the charge, and the new one is cancelled while it is at the step before."""
    runs, repeated = count(1), asyncio.Event()

    @action("count_runs")
    async def count_runs() -> int:
        number = next(runs)
        if number > 1:
            repeated.set()
            await asyncio.Event().wait()
        return number

    crm = HttpService(name="crm", root=tmp_path, url_setting=server.url)
    book = BOOK.replace("OF", "steps.count.result").replace("effect: none}", "effect: none, heartbeat: 1s}")
    project = make_project(tmp_path, {"book": book}, [count_runs], address=temporal.address, options={"crm": crm})
    async with running_worker(project) as client:
        id = (await client.start("book", {}, id=f"forgotten-{uuid.uuid4()}")).id
        await until(lambda: is_waiting(client, id), "the charge is made")
        await reset(client, id)
        await asyncio.wait_for(repeated.wait(), LIMIT)
        await client.cancel(id)
        story = await finished(client, id)
    charge = story["steps"][1]
    assert (story["state"], charge["state"], charge["outcome"]) == ("COMPENSATED", "COMPENSATED", "done")
    assert (server.ledger()["balance"], server.ledger()["undone"]) == ("0.00", [f"{id}/charge"])
