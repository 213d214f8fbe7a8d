"""A probe that queries a database in which the participant leaves a trace."""

from __future__ import annotations

from sqlalchemy import text

from sagas import Rejected, Step
from tests.helpers.local_worker import finished
from tests.integration.engine.environment import Environment, resolve, run_saga, states

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


CORRECTED = """
    saga: asked-corrected
    input: {type: object, properties: {account: {type: string}}}
    steps:
      - id: a
        uses: work
        with: {value: "${{ input.account }}"}
        on_failure: park
        retry: {max_attempts: 2, initial_interval: 10ms}
        settle: 100ms
        compensate: unwork
        probe:
          uses: sql
          with: {connection: shop, run: select what from effects where what = :a, params: {a: "${{ input.account }}"}}
          done: size(response) == 1
          absent: size(response) == 0
          result: response[0].what
    output: {a: "${{ default(steps.a.result, 'none') }}"}
"""


async def test_a_corrected_step_is_looked_for_with_its_correction(env: Environment) -> None:
    """Another saga has the effect that the step would have had without the correction."""
    async with env.engine.begin() as connection:
        await connection.execute(text("insert into effects values ('X')"))

    async def effect(step: Step) -> None:
        async with env.engine.begin() as connection:
            await connection.execute(text("insert into effects values ('A') on conflict do nothing"))
        raise ConnectionError("lost")

    env.plan["do a"] = [Rejected("no such account"), effect]
    async with env.serving(CORRECTED) as client:
        run = await client.start("asked-corrected", {"account": "X"})
        assert (await finished(client, run.id))["parked"][0]["op"] == "do"
        story = await resolve(client, run.id, "a", "retry", **{"with": {"value": "A"}})
    assert (story["state"], story["output"]) == ("COMPLETED", {"a": "A"})
