"""Pre-checks on a real server and a real database: what they read, and a worker that is lost while they run."""

from __future__ import annotations

from sqlalchemy import text

from sagas import Rejected
from tests.helpers.local_worker import finished
from tests.integration.engine.environment import Environment, begin, gate, run_saga, states, wait_for_event

CHECKED = """
    saga: checked
    input: {type: object, properties: {sku: {type: string}}}
    steps:
      - id: a
        uses: book
        check:
          uses: sql
          with:
            connection: shop
            run: select what from effects where what = :sku
            params: {sku: "${{ input.sku }}"}
            expect_rows: 1
            rejected: there is none
        compensate: unbook
      - {id: b, uses: work, check: {uses: look, with: {value: 1}, timeout: 2s}, pivot: true}
"""


async def test_a_rejected_check_leaves_no_effect(env: Environment) -> None:
    async with env.serving(CHECKED) as client:
        story = await run_saga(client, "checked", {"sku": "tea"})
    assert (story["state"], story["reason"]["kind"], story["reason"]["step"]) == ("COMPENSATED", "rejected", "a")
    assert story["reason"]["message"] == "there is none"
    assert (states(story)["a.check"], states(story)["a"]) == ("REJECTED", "PENDING")
    assert not {"do a", "do b"} & set(env.log())
    assert await env.effects() == []


async def test_all_checks_precede_the_first_step(env: Environment) -> None:
    env.plan["do b.check"] = [Rejected("no"), None]
    async with env.engine.begin() as connection:
        await connection.execute(text("insert into effects values ('tea')"))
    async with env.serving(CHECKED) as client:
        refused = await run_saga(client, "checked", {"sku": "tea"})
        story = await run_saga(client, "checked", {"sku": "tea"})
    assert (refused["state"], refused["reason"]["step"]) == ("COMPENSATED", "b")
    assert story["state"] == "COMPLETED"
    assert env.log() == ["do b.check", "do b.check", "do a", "do b"]


async def test_checks_go_on_on_another_worker(env: Environment) -> None:
    move, begun, _ = gate()
    env.plan["do b.check"] = [move, None]
    async with env.engine.begin() as connection:
        await connection.execute(text("insert into effects values ('tea')"))
    async with env.serving(CHECKED) as client:
        saga = await begin(client, "checked", {"sku": "tea"})
        await wait_for_event(begun)
    async with env.again() as client:
        story = await finished(client, saga)
    assert story["state"] == "COMPLETED"
    assert [what for what in env.log() if what != "do b.check"] == ["do a", "do b"]
