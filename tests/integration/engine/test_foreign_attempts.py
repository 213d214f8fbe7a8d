"""Attempts of a worker that knows nothing of this project, as the engine reads and shows them."""

from __future__ import annotations

import uuid
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, run_saga


@activity.defn(name="echo")
async def echo(argument: dict[str, Any]) -> dict[str, Any]:
    return argument


@activity.defn(name="fail")
async def fail(argument: dict[str, Any]) -> None:
    raise ApplicationError("no connection")


@activity.defn(name="refuse")
async def refuse(argument: dict[str, Any]) -> None:
    detail = {"attempt": activity.info().attempt, "code": "sold-out", "seats": []}
    raise ApplicationError("sold out", detail, type="Rejected", non_retryable=True)


def abroad(queue: str, uses: str) -> str:
    return f"""
        saga: abroad
        steps:
          - id: ask
            uses: {uses}
            task_queue: {queue}
            with: {{seats: [], voucher: null}}
            effect: none
            retry: {{initial_interval: 100ms}}
        output: {{seats: "${{{{ steps.ask.result.seats }}}}", voucher: "${{{{ steps.ask.result.voucher }}}}"}}
    """


async def test_a_worker_may_return_its_argument(env: Environment) -> None:
    queue = f"abroad-{uuid.uuid4()}"
    async with (
        env.serving(abroad(queue, "echo")) as client,
        Worker(client.temporal, task_queue=queue, activities=[echo]),
    ):
        story = await run_saga(client, "abroad")
    assert (story["state"], story["output"]) == ("COMPLETED", {"seats": [], "voucher": None})


async def test_details_in_the_same_object_as_the_attempt_are_kept(env: Environment) -> None:
    queue = f"abroad-{uuid.uuid4()}"
    async with (
        env.serving(abroad(queue, "refuse")) as client,
        Worker(client.temporal, task_queue=queue, activities=[refuse]),
    ):
        story = await run_saga(client, "abroad")
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "rejected")
    assert story["reason"]["details"] == {"code": "sold-out", "seats": []}
    assert story["steps"][0]["attempts"] == 1


async def test_an_attempt_that_is_due_has_no_time(env: Environment) -> None:
    queue = f"abroad-{uuid.uuid4()}"
    async with env.serving(abroad(queue, "fail")) as client:
        async with Worker(client.temporal, task_queue=queue, activities=[fail]):
            saga_id = await begin(client, "abroad")

            async def failed() -> Any:
                steps = (await client.show(saga_id))["steps"]
                return steps and steps[0]["attempts"]

            await until(failed)

        async def step_when_due() -> Any:
            step = (await client.show(saga_id))["steps"][0]
            return step if step.get("next_attempt_at") is None else None

        step = await until(step_when_due)
        assert step["error"]["message"] == "no connection"
        await client.cancel(saga_id)
