"""A saga that a plain workflow of somebody else starts as its child: it is nowhere nested, and is its own root saga."""

from __future__ import annotations

import uuid
from typing import Any

from temporalio import workflow
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from saga_workers.client import Client
from saga_workers.stuck.open_sagas import find_lost
from tests.integration.engine.environment import Environment, handle, row
from tests.integration.engine.nested.families import GO, book, define, has_state
from tests.integration.engine.repeated_runs import waits_at

LINE = define("line", "{id: first, uses: book, compensate: unbook, if: input.n == 1}", book("x"), GO)


@workflow.defn(name="plain_parent", sandboxed=False)
class PlainParent:
    """A workflow that starts a saga as its child, and does not wait for it."""

    @workflow.run
    async def run(self, id: str, queue: str, input: Any) -> None:
        abandon = workflow.ParentClosePolicy.ABANDON
        await workflow.start_child_workflow("line", input, id=id, task_queue=queue, parent_close_policy=abandon)


async def begin_as_child(client: Client, id: str, input: Any) -> None:
    """Start the saga `line` as the child of a plain workflow, which ends at once."""
    queue, own = f"plain-{uuid.uuid4()}", client.project.settings.temporal.task_queue
    runner = UnsandboxedWorkflowRunner()
    async with Worker(client.temporal, task_queue=queue, workflows=[PlainParent], workflow_runner=runner):
        arguments = [id, own, input]
        await client.temporal.execute_workflow("plain_parent", args=arguments, id=f"parent-of-{id}", task_queue=queue)


async def test_its_input_tells_it_from_another_one_with_its_id(env: Environment) -> None:
    async with env.serving(LINE) as client:
        id = f"line-{uuid.uuid4()}"
        await begin_as_child(client, id, {"n": 1})
        await waits_at(client, id)
        await handle(client, id).terminate("a test")
        await begin_as_child(client, id, {"n": 2})
        await has_state(client, id, "PARKED")
        assert "another saga with this id" in row(await client.show(id), "x")["error"]["message"]
        lost = await find_lost(client.locator, client.project.settings, suspects=[id, f"parent-of-{id}"])
        assert [saga.saga_id for saga in lost] == [id]


async def test_it_ends_as_any_saga(env: Environment) -> None:
    async with env.serving(LINE) as client:
        id = f"line-{uuid.uuid4()}"
        await begin_as_child(client, id, {"n": 1})
        await waits_at(client, id)
        assert await client.cancel(id) == "accepted"
        await has_state(client, id, "COMPENSATED")
    assert await env.effects() == []
