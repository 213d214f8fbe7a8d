"""A call without a guard whose arguments depend on a read, in a run that repeats a deleted one and reads otherwise."""

from __future__ import annotations

import pytest

from saga_workers.client import Client
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle, resolve, row
from tests.integration.engine.repeated_runs import repeat, waits_at

CALL = 'with: {value: "${{ steps.price.result.value }}"}, compensate: unwork'
PRICED = """
    saga: priced
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: price, uses: work, effect: none}
      - CALL
      - {id: go, uses: wait, with: {signal: go}}
"""


@pytest.fixture
def env(postgres_env: Environment) -> Environment:
    return postgres_env


@pytest.mark.parametrize(
    "call", ["uses: work", "uses: careless, probe: {uses: look, done: response.answer == 1}"], ids=["plain", "probed"]
)
async def test_its_key_gets_other_arguments_unless_a_probe_is_asked(env: Environment, call: str) -> None:
    env.plan |= {"do price": [{"value": 1}, {"value": 2}], "probe charge": [{"answer": 1}]}
    async with env.serving(PRICED.replace("CALL", f"{{id: charge, {call}, {CALL}}}")) as client:
        id = await begin(client, "priced")
        await repeat(client, id, "delete")
        await waits_at(client, id, "go")
        charges = [(call.key, call.value) for call in env.asked if call.what == "do charge"]
        await handle(client, id).signal("go")
        assert (await finished(client, id))["state"] == "COMPLETED"
    values = [1] if "probe" in call else [1, 2]
    assert charges == [(f"{id}/charge", value) for value in values]


async def test_a_guarded_step_with_the_result_of_the_read_notices_it_before(env: Environment) -> None:
    env.plan |= {"do price": [{"value": 1}, {"value": 2}]}
    keep = f"{{id: keep, uses: book, {CALL.replace('unwork', 'unbook')}}}"
    calls = f"{keep}\n      - {{id: charge, uses: work, {CALL.replace('price', 'keep')}}}"
    async with env.serving(PRICED.replace("CALL", calls)) as client:
        id = await begin(client, "priced")
        await repeat(client, id, "delete")
        story = await finished(client, id)
        assert (story["state"], row(story, "keep")["state"]) == ("PARKED", "PARKED")
        assert story["parked"][0]["why"] == "key used with other arguments"
        assert env.log().count("do charge") == 1
        await client.cancel(id, reason="a test", who="ada")
        await until(lambda: _is_parked(client, id, "charge"))  # its undo has no result of `keep`
        story = await resolve(client, id, "charge", "skip")
        # The undo, with what this run would have kept, is not that of what the deleted one has kept.
        assert [(at["step"], at["op"], at["why"]) for at in story["parked"]] == [
            ("keep", "undo", "the effect was made with other arguments")
        ]
        assert (await env.effects(), env.log().count("undo keep")) == (["a", "keep"], 0)


async def _is_parked(client: Client, id: str, step: str) -> bool:
    return [at["step"] for at in (await client.show(id))["parked"]] == [step]
