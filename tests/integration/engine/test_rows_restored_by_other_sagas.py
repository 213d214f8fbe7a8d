"""A row is as before the step of a saga because a later saga has changed it back: that saga may be undone, too."""

from __future__ import annotations

from saga_workers.client import Client
from tests.helpers.local_worker import finished
from tests.integration.engine.environment import Environment, run_saga
from tests.integration.engine.test_automatic_compensation import prepare, released, stock

SET = """
    saga: set
    input: {type: object, required: [free], properties: {free: {type: integer}}}
    steps:
      - id: put
        uses: sql
        with: {connection: shop, run: "update stock set free = :n where sku = 'A'", params: {n: "${{ input.free }}"}}
        compensate: auto
"""


async def changed(env: Environment, client: Client, *states: int) -> list[str]:
    """The ids of sagas that have set the stock of A one after the other, from 5."""
    await prepare(env)
    ids = []
    for free in states:
        ids.append((await run_saga(client, "set", {"free": free}))["id"])
        await released(env)
    return ids


async def test_undos_of_sagas_that_have_changed_a_row_back(env: Environment) -> None:
    """5 → 4 → 3 → 5: the row is as before the first one, until the last one is undone."""
    async with env.serving(SET) as client:
        ids = await changed(env, client, 4, 3, 5)
        for at, free in ((0, 5), (2, 3), (1, 5)):
            await client.undo(ids[at], reason="returned", who="ada")
            assert (await finished(client, ids[at]))["state"] == "COMPENSATED"
            await released(env)
            assert (await stock(env))["A"] == free


async def test_the_later_saga_is_undone_first_while_the_undo_of_the_earlier_one_waits(env: Environment) -> None:
    async with env.serving(SET) as client:
        first, second = await changed(env, client, 4, 3)
        await client.undo(first, reason="returned", who="ada")
        parked = await finished(client, first)
        assert f"changed since by step put of the saga {second}" in parked["parked"][0]["why"]
        await client.undo(second, reason="returned", who="ada")
        assert (await finished(client, second))["state"] == "COMPENSATED", "the first one has the lock of the row"
        assert (await stock(env))["A"] == 4
        await client.resolve(first, {"step": "put", "decision": "retry", "who": "ada", "reason": "the later is undone"})
        assert (await finished(client, first))["state"] == "COMPENSATED"
    assert await stock(env) == {"A": 5, "B": 5}
