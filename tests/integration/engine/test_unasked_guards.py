"""A step of a repeated run that ends before its guard was asked: the run before may have done it."""

from __future__ import annotations

import pytest

from saga_workers.client import Client
from tests.helpers.local_worker import finished
from tests.integration.engine.environment import Environment, begin, row
from tests.integration.engine.repeated_runs import repeat, waits_at

READS = """
    saga: reads
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: look, uses: work, effect: none}
      - {id: b, uses: book, with: {value: "${{ steps.look.result.name }}"}, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
"""
NAME = '"${{ steps.look.result.name }}"'
CONDITION = READS.replace(f"with: {{value: {NAME}}}", f"if: {NAME}")


@pytest.mark.sampled(turns="how")
@pytest.mark.parametrize("how", ["reset", "resumed"])
async def test_a_step_that_cannot_be_evaluated_any_more_is_undone(env: Environment, how: str) -> None:
    env.plan["do look"] = [{"name": True}, {"title": "b"}]
    async with env.serving(READS) as client:
        id = await begin(client, "reads")
        await repeat(client, id, how)
        story = await finished(client, id)
        assert (story["state"], row(story, "b")["state"]) == ("COMPENSATED", "COMPENSATED")
        assert "name" in story["reason"]["message"]
        assert await env.effects() == []


async def test_a_step_that_cannot_be_evaluated_any_more_is_not_left_out(env: Environment) -> None:
    env.plan["do look"] = [{"name": "b"}, {"title": "b"}]
    async with env.serving(READS.replace("{id: b,", "{id: b, on_failure: continue,")) as client:
        id = await begin(client, "reads")
        await repeat(client, id, "reset")
        await check_that_it_is_done_and_can_be_undone(env, client, id)


@pytest.mark.sampled(turns="how")
@pytest.mark.parametrize("how", ["reset", "resumed"])
async def test_a_condition_stands_that_cannot_be_evaluated_any_more(env: Environment, how: str) -> None:
    env.plan["do look"] = [{"name": True}, {"title": "b"}]
    async with env.serving(CONDITION) as client:
        id = await begin(client, "reads")
        await repeat(client, id, how)
        await check_that_it_is_done_and_can_be_undone(env, client, id)


async def check_that_it_is_done_and_can_be_undone(env: Environment, client: Client, id: str) -> None:
    await waits_at(client, id, "go")
    assert row(await client.show(id), "b")["state"] == "DONE"
    await client.cancel(id)
    assert ((await finished(client, id))["state"], await env.effects()) == ("COMPENSATED", [])
