"""A probe that queries a database in which the participant leaves a trace."""

from __future__ import annotations

from sqlalchemy import text

from sagas import Step
from tests.integration.engine.environment import Environment, run_saga, states

ASKED = """
    saga: asked-by-sql
    steps:
      - id: a
        uses: work
        retry: {max_attempts: 2, initial_interval: 10ms}
        settle: 100ms
        compensate: unwork
        probe:
          uses: sql
          with: {connection: shop, run: select what from effects where what = :key, params: {key: "${{ step.key }}"}}
          done: size(response) == 1
          absent: size(response) == 0
          result: response[0].what
    output: {a: "${{ default(steps.a.result, 'none') }}"}
"""


async def test_rows_mean_done(env: Environment) -> None:
    async def effect(step: Step) -> None:
        async with env.engine.begin() as connection:
            await connection.execute(
                text("insert into effects values (:key) on conflict do nothing"), {"key": step.key}
            )
        raise ConnectionError("lost")

    env.plan["do a"] = [effect]
    async with env.serving(ASKED) as client:
        story = await run_saga(client, "asked-by-sql")
    assert (story["state"], story["output"]) == ("COMPLETED", {"a": f"{story['id']}/a"})


async def test_no_rows_mean_absent(env: Environment) -> None:
    env.plan["do a"] = [ConnectionError("lost")]
    async with env.serving(ASKED) as client:
        story = await run_saga(client, "asked-by-sql")
    assert (story["state"], states(story)["a"]) == ("COMPENSATED", "NOTHING_TO_UNDO")
    assert "undo a" not in env.log()
