"""A reset of a saga that has released its locks: past its commit point it goes on without them."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from saga_activities.locks.tables import create_tables
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import reset_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle
from tests.integration.engine.repeated_runs import waits_at

PIVOT = """
    saga: locked
    locks: {keys: [seat]}
    steps:
      - {id: a, uses: book, pivot: true}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: b, uses: work}
"""
CONFIRMED = """
    saga: locked
    locks: {keys: [seat]}
    steps:
      - {id: a, uses: book, compensate: unbook, confirm: fix}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: b, uses: book, compensate: unbook}
"""


async def _holds(env: Environment) -> int:
    async with env.engine.connect() as connection:
        return (await connection.execute(text("select count(*) from saga_lock"))).scalar_one()


@pytest.mark.sampled
@pytest.mark.parametrize("definition", [PIVOT, CONFIRMED], ids=["pivot", "confirmed"])
@pytest.mark.parametrize("when", ["waiting", "completed"])
async def test_a_saga_past_its_commit_point_goes_on(env: Environment, definition: str, when: str) -> None:
    await create_tables(env.engine)
    async with env.serving(definition) as client:
        id = await begin(client, "locked")
        await waits_at(client, id, "go")
        if when == "completed":
            await handle(client, id).signal("go")
            assert (await finished(client, id))["state"] == "COMPLETED"
            await until(lambda: _is_free(env))
        effects = await env.effects()
        await reset_run(client.temporal, id)
        if when == "waiting":
            await waits_at(client, id, "go")
            assert await _holds(env) == 1
            await handle(client, id).signal("go")
        assert (await finished(client, id))["state"] == "COMPLETED"
        await until(lambda: _is_free(env))
        assert when == "waiting" or await env.effects() == effects
    assert env.log().count("do a") == 1


async def _is_free(env: Environment) -> bool:
    return await _holds(env) == 0


async def test_a_saga_before_its_commit_point_is_undone(env: Environment) -> None:
    await create_tables(env.engine)
    async with env.serving(CONFIRMED.replace(", confirm: fix", "")) as client:
        id = await begin(client, "locked")
        await waits_at(client, id, "go")
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
        await reset_run(client.temporal, id, keeps_signals=False)
        assert (await finished(client, id))["state"] == "COMPENSATED"
    assert await env.effects() == []
