"""Notifications whose workflow id a run of somebody else has: they are delivered, and it is not believed."""

from __future__ import annotations

import pytest

from sagas.protocol.payloads import NOTIFICATION_MEMO, NOTIFICATION_WORKFLOW
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, row

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

        async def waits() -> bool:
            return row(await client.show(id), "go")["state"] == "RUNNING"

        await until(waits)
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
