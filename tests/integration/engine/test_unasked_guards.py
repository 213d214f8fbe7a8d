"""A step of a repeated run that ends before its guard was asked: the run before may have done it."""

from __future__ import annotations

import pytest

from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, row
from tests.integration.engine.repeated_runs import repeat

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


@pytest.mark.parametrize("how", ["reset", "resumed"])
@pytest.mark.parametrize("definition", [READS, CONDITION], ids=["arguments", "condition"])
async def test_a_step_that_cannot_be_evaluated_any_more_is_undone(env: Environment, definition: str, how: str) -> None:
    env.plan["do look"] = [{"name": True}, {"title": "b"}]
    async with env.serving(definition) as client:
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

        async def waits() -> bool:
            return row(await client.show(id), "go")["state"] == "RUNNING"

        await until(waits)
        assert row(await client.show(id), "b")["state"] == "DONE"
        await client.cancel(id)
        assert ((await finished(client, id))["state"], await env.effects()) == ("COMPENSATED", [])
