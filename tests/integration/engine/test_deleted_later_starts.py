"""A saga was undone, and started again, and the run of that start was deleted: the ledger has its end, whatever becomes
of the run of the first start.
"""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import WorkflowFailureError

from saga_workers.client import Client
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import delete_run, reset_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle

SAGA = """
    saga: restarted
    steps:
      - {id: a, uses: book, compensate: unbook}
"""


async def test_the_later_start_counts_and_not_the_undo_of_the_first(env: Environment, orders: AsyncEngine) -> None:
    async with env.serving(SAGA) as client:
        id = await begin(client, "restarted")
        await finished(client, id)
        first = (await handle(client, id).describe()).run_id
        await client.undo(id, reason="a test", who="ada")
        await until(lambda: _is(client, id, "COMPENSATED", 1))
        await begin(client, "restarted", id=id, again=True)
        await finished(client, id)

        async def is_recorded() -> bool:
            row = await client.locator.ledger.find(id)
            return row is not None and (row.view.state, row.view.generation) == ("COMPLETED", 2)

        await until(is_recorded)
        await delete_run(client.temporal, id)
        made = await reset_run(client.temporal, id, run_id=first)
        with pytest.raises(WorkflowFailureError):
            await client.temporal.get_workflow_handle(id, run_id=made).result()
        assert await _is(client, id, "COMPLETED", 2)
        assert not (await client.start("restarted", {}, id=id)).started
    assert await env.effects() == ["a"]


async def _is(client: Client, id: str, state: str, generation: int) -> bool:
    view = await client.view(id)
    return (view.state, view.generation) == (state, generation)
