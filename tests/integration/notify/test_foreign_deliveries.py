"""Notifications whose workflow id a run of somebody else has: they are delivered, and it is not believed."""

from __future__ import annotations

from typing import Any

import pytest

from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.views.notifications import resend
from saga_workers.views.saga_list import SagaFilter
from sagas import Rejected
from sagas.errors import RefusedError
from sagas.protocol.payloads import NOTIFICATION_MEMO, NOTIFICATION_WORKFLOW
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin
from tests.integration.engine.repeated_runs import waits_at

TOLD = """
    saga: told
    steps:
      - {id: a, uses: work, effect: none}
      - {id: go, uses: wait, with: {signal: go}}
    notify:
      - {when: completed, uses: work, with: {value: told}}
"""


@pytest.mark.parametrize("kind", ["billing", NOTIFICATION_WORKFLOW])
async def test_a_foreign_run_is_not_taken_for_the_delivery(env: Environment, kind: str) -> None:
    async with env.serving(TOLD) as client:
        id = await begin(client, "told")
        await waits_at(client, id)
        memo = {NOTIFICATION_MEMO: {"state": "DELIVERED", "saga_id": id, "attempts": 1}}
        foreign = await client.temporal.start_workflow(
            kind, {}, id=f"{id}~notify-0-completed", task_queue="nobody", memo=memo
        )
        await client.signal(id, "go")
        assert (await finished(client, id))["state"] == "COMPLETED"

        async def is_delivered() -> bool:
            return "do notify-0-completed" in env.log()

        await until(is_delivered)

        async def is_shown() -> bool:
            [told] = (await client.show(id))["notifications"]
            return (told["state"], told["run"]) == ("DELIVERED", f"{foreign.id}.2")

        await until(is_shown)
        await foreign.terminate("a test")


async def test_it_is_delivered_although_both_of_its_ids_are_taken(env: Environment) -> None:
    env.plan["do notify-0-completed"] = [Rejected("gone")]
    async with env.serving(TOLD) as client:
        id = await begin(client, "told")
        await waits_at(client, id)
        taken = [f"{id}~notify-0-completed{suffix}" for suffix in ("", ".2")]
        foreign = [await client.temporal.start_workflow("billing", {}, id=run, task_queue="nobody") for run in taken]
        await client.signal(id, "go")
        assert (await finished(client, id))["state"] == "COMPLETED"

        async def is_listed() -> list[str]:
            criteria = SagaFilter(task_queue=client.project.settings.temporal.task_queue)
            stuck = [view async for view in list_stuck(client.locator, criteria, limit=10)]
            return [reason for view in stuck if view.id == id for reason in view.stuck or ()]

        reasons = await until(is_listed)
        assert "notify-0-completed is EXHAUSTED after 1 attempt: gone" in reasons[0]
        [told] = (await client.show(id))["notifications"]
        assert told["run"].startswith(f"{taken[0]}.")
        assert told["run"] not in taken
        for run in foreign:
            await run.terminate("a test")


@pytest.mark.parametrize("inputs", [[], [{}], [[]], [{"saga_id": "x"}, 2]])
async def test_a_run_without_an_order_is_not_sent_again(env: Environment, inputs: list[Any]) -> None:
    async with env.serving(TOLD) as client:
        id = await begin(client, "told")
        await client.signal(id, "go")
        assert (await finished(client, id))["state"] == "COMPLETED"

        async def is_delivered() -> bool:
            [told] = (await client.show(id))["notifications"]
            return told["state"] == "DELIVERED"

        await until(is_delivered)
        foreign = await client.temporal.start_workflow(
            NOTIFICATION_WORKFLOW, args=inputs, id=f"{id}~notify-0-completed", task_queue="nobody"
        )
        await foreign.terminate("a test")
        with pytest.raises(RefusedError, match="was not started as a notification of a saga"):
            await resend(client.temporal, await client.view(id), "notify-0-completed")
