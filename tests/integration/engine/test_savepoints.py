"""Savepoints on a real server: what runs again, under which keys, and a worker that is lost in between."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from saga_workers.worker import before_reset
from sagas import Rejected, Step
from sagas.errors import RefusedError
from tests.helpers import run_changes
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import (
    Environment,
    begin,
    gate,
    handle,
    resolve,
    row,
    run_saga,
    wait_for_event,
)
from tests.integration.engine.repeated_runs import waits_at

RETRIED = """
    saga: retried
    input: {type: object, properties: {wait: {type: string}}}
    steps:
      - {id: a, uses: book, compensate: unbook, savepoint: {attempts: 3, wait: 100ms}}
      - {id: b, uses: book, compensate: unbook}
      - {id: c, uses: book, compensate: unbook}
"""


async def test_a_rejected_step_runs_again_after_what_follows_the_savepoint_is_undone(env: Environment) -> None:
    env.plan["do c"] = [Rejected("full"), {"value": "free"}]
    async with env.serving(RETRIED) as client:
        story = await run_saga(client, "retried")
    assert (story["state"], story["reason"]) == ("COMPLETED", None)
    assert env.log() == ["do a", "do b", "do c", "undo b", "do b", "do c"]
    assert [call.key.removeprefix(story["id"]) for call in env.asked][-2:] == ["/b@2", "/c@2"]
    assert row(story, "a")["generation"] == 1
    assert story["savepoints"] == [{"step": "a", "runs": 2, "attempts": 3}]
    assert await env.effects() == ["a", "b", "c"]


async def test_after_all_attempts_everything_is_undone(env: Environment) -> None:
    env.plan["do c"] = [Rejected("full")]
    async with env.serving(RETRIED) as client:
        story = await run_saga(client, "retried")
    assert (story["state"], story["reason"]["step"]) == ("COMPENSATED", "c")
    assert [call.what for call in env.asked].count("do c") == 3
    assert env.log()[-2:] == ["undo b", "undo a"]
    assert await env.effects() == []


async def test_the_key_of_a_rejected_attempt_is_sealed_before_the_next_run(env: Environment) -> None:
    env.plan["do c"] = [Rejected("full"), {"value": "free"}]
    async with env.serving(RETRIED) as client:
        story = await run_saga(client, "retried")
        async with env.engine.connect() as connection:
            rows = (
                await connection.execute(
                    text("select step, generation, op, reason from saga_guard where saga_id = :id order by 1, 2, 3"),
                    {"id": story["id"]},
                )
            ).all()
    assert ("c", 1, "do", "undo") in [tuple(row) for row in rows]
    assert ("c", 2, "do", "do") in [tuple(row) for row in rows]


CORRECTED = """
    saga: corrected-rerun
    input: {type: object, properties: {account: {type: string}}}
    steps:
      - {id: a, uses: book, compensate: unbook, savepoint: {attempts: 3}}
      - {id: b, uses: book, with: {value: "${{ input.account }}"}, compensate: unbook, on_failure: park}
      - {id: c, uses: book, compensate: unbook}
"""


async def test_a_corrected_step_runs_again_with_its_correction(env: Environment) -> None:
    env.plan["do b"] = [Rejected("no such account"), {"value": "found"}]
    env.plan["do c"] = [Rejected("full"), {"value": "free"}]
    async with env.serving(CORRECTED) as client:
        run = await client.start("corrected-rerun", {"account": "X"})
        assert (await finished(client, run.id))["parked"][0]["step"] == "b"
        story = await resolve(client, run.id, "b", "retry", **{"with": {"value": "A"}})
    assert (story["state"], story["savepoints"][0]["runs"]) == ("COMPLETED", 2)
    assert [call.value for call in env.asked if call.what == "do b"] == ["X", "A", "A"]


@pytest.mark.slow
async def test_a_further_run_goes_on_on_another_worker(env: Environment) -> None:
    move, begun, _ = gate()
    env.plan["do c"] = [Rejected("full"), {"value": "free"}]
    env.plan["undo b"] = [move, None]
    async with env.serving(RETRIED) as client:
        saga = await begin(client, "retried")
        await wait_for_event(begun)
    async with env.again() as client:
        story = await finished(client, saga)
    assert story["state"] == "COMPLETED"
    assert await env.effects() == ["a", "b", "c"]


async def test_a_cancel_during_the_undo_goes_past_the_savepoint(env: Environment) -> None:
    move, begun, go = gate()
    env.plan["do c"] = [Rejected("full")]
    env.plan["undo b"] = [move]
    async with env.serving(RETRIED) as client:
        saga = await begin(client, "retried")
        await wait_for_event(begun)
        answer = await handle(client, saga).execute_update("cancel", {"who": "ada", "reason": "enough"})
        go.set()
        story = await finished(client, saga)
    assert (answer, story["state"], story["reason"]["kind"]) == ("accepted", "COMPENSATED", "cancelled")
    assert await env.effects() == []


PAID = """
    saga: paid
    steps:
      - {id: go, uses: wait, with: {signal: go}}
      - {id: a, uses: book, compensate: unbook, savepoint: {attempts: 3, wait: 100ms}}
      - {id: b, uses: book, compensate: unbook}
      - {id: c, uses: book, compensate: unbook}
      - {id: pay, uses: book, pivot: true}
"""


async def test_a_pivot_that_ends_after_a_reset_is_found_whatever_the_generations_of_other_steps(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded_effects = before_reset.recorded_effects

    async def is_paid() -> bool:
        return "pay" in await env.effects()

    async def effects_once_paid(*args: Any) -> Any:
        await until(is_paid)
        return await recorded_effects(*args)

    monkeypatch.setattr(before_reset, "recorded_effects", effects_once_paid)
    env.plan["do c"] = [Rejected("full"), {"value": "free"}]
    async with env.serving(PAID) as client:
        saga = await begin(client, "paid")
        await waits_at(client, saga, "go")

        async def reset(step: Step) -> None:
            generations = {id: row(await client.show(saga), id)["generation"] for id in ("b", "pay")}
            assert generations == {"b": 2, "pay": 1}
            await run_changes.reset_run(client.temporal, saga, keeps_signals=False)

        env.plan["do pay"] = [reset, None]
        await handle(client, saga).signal("go")
        await until(is_paid)
        await waits_at(client, saga, "go")
        with pytest.raises(RefusedError, match="past the point of no return"):
            await client.cancel(saga)
        await handle(client, saga).signal("go")
        assert (await finished(client, saga))["state"] == "COMPLETED"
    assert await env.effects() == ["a", "b", "c", "pay"]
