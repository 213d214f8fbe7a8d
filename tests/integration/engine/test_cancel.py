"""Cancelling, at every position (guarantees, rules 2, 5, 6), on a real server."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.client import WorkflowExecutionStatus

from saga_workers.client import Client
from sagas import Rejected, Step
from sagas.errors import RefusedError
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, gate, handle, row, states, wait_for_event

LINE = """
    saga: line
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: b, uses: wait, with: {for: 400ms}}
      - {id: c, uses: book, compensate: unbook}
      - {id: d, uses: work, pivot: true}
      - {id: e, uses: work}
"""
FAILING = LINE.replace(
    "{id: d, uses: work, pivot: true}", '{id: d, uses: require, with: {that: "${{ false }}"}}'
).replace("      - {id: e, uses: work}\n", "")


@pytest.mark.sampled
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("position", ["start", "a", "b", "c", "d", "e"])
async def test_a_cancel_at_every_position(env: Environment, position: str, native: bool) -> None:
    move, begun, go = gate()
    if position in "acde":
        env.plan[f"do {position}"] = [move]
    async with env.serving(LINE) as client:
        saga = await begin(client, "line")
        if position == "b":
            await until(lambda: "do a" in env.log())
        elif position != "start":
            await wait_for_event(begun)
        if native:
            await handle(client, saga).cancel()
            await until(lambda: _cancel_seen(client, saga)) if position not in "ed" else None
        else:
            answer = await handle(client, saga).execute_update("cancel", {"who": "ada", "reason": "enough"})
            assert answer == {"d": "recorded", "e": "past the point of no return"}.get(position, "accepted")
        go.set()
        story = await finished(client, saga)
        status = (await handle(client, saga).describe()).status
    if position in "de":
        assert story["state"] == "COMPLETED", "only the pivot's own end decides"
        assert await env.effects() == ["a", "c"]
        return
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "cancelled")
    assert status is (WorkflowExecutionStatus.CANCELED if native else WorkflowExecutionStatus.FAILED)
    assert await env.effects() == []


async def test_a_cancel_before_the_first_task_runs_nothing(env: Environment) -> None:
    async with env.serving(LINE):
        pass  # makes the project
    assert env.project is not None
    from temporalio.client import Client as Temporal

    temporal = await Temporal.connect(env.address)
    queue = env.project.settings.temporal.task_queue
    run = await temporal.start_workflow("line", {}, id=f"before-{queue}", task_queue=queue)
    await run.cancel()
    async with env.again() as client:
        story = await finished(client, run.id)
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "cancelled")
    assert env.asked == []


async def test_a_second_cancel_is_a_reported_no_op(env: Environment) -> None:
    move, begun, go = gate()
    env.plan["undo a"] = [move]
    async with env.serving(FAILING) as client:
        saga = await begin(client, "line")
        await wait_for_event(begun)
        for _ in range(2):
            await handle(client, saga).cancel()
            assert await handle(client, saga).execute_update("cancel") == "already"
        go.set()
        story = await finished(client, saga)
        status = (await handle(client, saga).describe()).status
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "rejected")
    assert status is WorkflowExecutionStatus.FAILED, "the cancel is not what led backward"
    assert env.log()[-2:] == ["undo c", "undo a"]


async def test_a_cancel_of_a_saga_that_an_earlier_one_has_undone_is_a_no_op(env: Environment) -> None:
    async with env.serving(LINE) as client:
        saga, other = await begin(client, "line"), await begin(client, "line")
        await until(lambda: env.log().count("do a") == 2)
        assert await client.cancel(saga) == "accepted"
        assert (await finished(client, saga))["state"] == "COMPENSATED"
        log = env.log()
        assert await client.cancel(saga) == "already"
        assert env.log() == log
        await finished(client, other)
        with pytest.raises(RefusedError, match=f"{other} has already ended COMPLETED"):
            await client.cancel(other)


async def test_a_native_cancel_after_an_update_cancel_is_not_the_reason(env: Environment) -> None:
    move, begun, go = gate()
    env.plan["do c"] = [move]
    async with env.serving(LINE) as client:
        saga = await begin(client, "line")
        await wait_for_event(begun)
        assert await handle(client, saga).execute_update("cancel") == "accepted"
        await handle(client, saga).cancel()
        go.set()
        await finished(client, saga)
        assert (await handle(client, saga).describe()).status is WorkflowExecutionStatus.FAILED


@pytest.mark.parametrize("native", [pytest.param(True, marks=pytest.mark.slow), False])
async def test_a_cancel_that_races_the_end_of_a_step_loses_no_effect(env: Environment, native: bool) -> None:
    """The cancel and the end of the attempt often share one workflow task: the end must not get lost."""
    async with env.serving(LINE.replace("400ms", "1ms")) as client:
        for number in range(30):
            await _race(env, client, number, native)


async def _race(env: Environment, client: Client, number: int, native: bool) -> None:
    env.asked.clear()
    saga = await begin(client, "line")
    await until(lambda: env.log() == ["do a"])
    await asyncio.sleep((number % 15) * 0.001)
    if native:
        await handle(client, saga).cancel()
    else:
        await handle(client, saga).execute_update("cancel")
    story = await finished(client, saga)
    if story["state"] == "COMPLETED":
        assert await env.effects() == ["a", "c"]
        async with env.engine.begin() as connection:
            await connection.exec_driver_sql("delete from effects")
    else:
        assert story["state"] == "COMPENSATED"
        assert await env.effects() == [], number


async def test_a_heartbeating_attempt_receives_the_cancel_and_its_result_counts(env: Environment) -> None:
    definition = """
        saga: beating
        steps:
          - {id: a, uses: work, heartbeat: 400ms, timeout: 10s, compensate: unwork}
          - {id: b, uses: work, effect: none}
    """
    begun = asyncio.Event()

    async def beat(step: Step) -> str:
        try:
            for number in range(200):
                step.heartbeat(number)
                begun.set()
                await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            return "stopped half way"
        return "not cancelled"

    env.plan["do a"] = [beat]
    async with env.serving(definition) as client:
        saga = await begin(client, "beating")
        await wait_for_event(begun)
        await client.cancel(saga)
        story = await finished(client, saga)
    assert (states(story)["a"], row(story, "a")["outcome"]) == ("COMPENSATED", "done")
    assert row(story, "a")["result"] == "stopped half way"


async def test_a_heartbeating_attempt_that_stops_is_unknown_and_undone(env: Environment) -> None:
    definition = """
        saga: giving
        steps:
          - {id: a, uses: work, heartbeat: 400ms, timeout: 10s, compensate: unwork}
    """
    begun = asyncio.Event()

    async def beat(step: Step) -> None:
        while True:
            step.heartbeat()
            begun.set()
            await asyncio.sleep(0.05)

    env.plan["do a"] = [beat]
    async with env.serving(definition) as client:
        saga = await begin(client, "giving")
        await wait_for_event(begun)
        await client.cancel(saga)
        story = await finished(client, saga)
    assert (states(story)["a"], row(story, "a")["outcome"]) == ("COMPENSATED", "unknown")
    assert env.log() == ["do a", "undo a"]


async def test_a_thread_cannot_be_interrupted_so_its_end_is_awaited(env: Environment) -> None:
    definition = """
        saga: thread
        steps:
          - {id: a, uses: plain, heartbeat: 400ms, timeout: 10s, compensate: unwork}
    """
    begun, go = asyncio.Event(), asyncio.Event()

    async def beat(step: Step) -> str:
        while not go.is_set():
            step.heartbeat()
            begun.set()
            await asyncio.sleep(0.05)
        return "to the end"

    env.plan["do a"] = [beat]
    async with env.serving(definition) as client:
        saga = await begin(client, "thread")
        await wait_for_event(begun)
        await client.cancel(saga)
        await asyncio.sleep(1)
        assert "undo a" not in env.log(), "no compensation while the action still runs"
        go.set()
        story = await finished(client, saga)
    assert (row(story, "a")["outcome"], row(story, "a")["result"]) == ("done", "to the end")


async def test_a_heartbeating_pivot_does_not_receive_the_cancel(env: Environment) -> None:
    definition = """
        saga: uninterruptible
        steps:
          - {id: a, uses: book, compensate: unbook}
          - {id: p, uses: book, heartbeat: 300ms, timeout: 10s, pivot: true}
    """
    begun = asyncio.Event()

    async def beat(step: Step) -> str:
        for _ in range(20):
            step.heartbeat()
            begun.set()
            await asyncio.sleep(0.05)
        return "done all the same"

    env.plan["do p"] = [beat]
    async with env.serving(definition) as client:
        saga = await begin(client, "uninterruptible")
        await wait_for_event(begun)
        assert await handle(client, saga).execute_update("cancel") == "recorded"
        story = await finished(client, saga)
    assert (story["state"], row(story, "p")["result"]) == ("COMPLETED", "done all the same")
    assert env.log() == ["do a", "do p"]


async def test_a_cancelled_pivot_that_fails_is_sealed_and_the_saga_compensates(env: Environment) -> None:
    definition = """
        saga: sealed
        steps:
          - {id: a, uses: book, compensate: unbook}
          - {id: p, uses: book, pivot: true}
    """
    begun, go = asyncio.Event(), asyncio.Event()

    async def fail(step: Step) -> None:
        begun.set()
        await go.wait()
        raise ValueError("broken")

    env.plan["do p"] = [fail]
    async with env.serving(definition) as client:
        saga = await begin(client, "sealed")
        await wait_for_event(begun)
        assert await handle(client, saga).execute_update("cancel") == "recorded"
        go.set()
        story = await finished(client, saga)
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "cancelled")
    assert env.log() == ["do a", "do p", "undo a"]
    assert await env.effects() == []


async def test_a_cancel_while_an_attempt_waits_for_its_retry_starts_no_other(env: Environment) -> None:
    definition = """
        saga: resting
        steps:
          - {id: a, uses: book, compensate: unbook, retry: {initial_interval: 1h, max_interval: 1h}}
    """
    env.plan["do a"] = [ValueError("later")]
    async with env.serving(definition) as client:
        saga = await begin(client, "resting")
        await until(lambda: env.log() == ["do a"])
        await asyncio.sleep(0.2)
        await client.cancel(saga)
        story = await finished(client, saga)
    assert story["state"] == "COMPENSATED"
    assert env.log() == ["do a"], "the guard sealed it; there was nothing to undo"
    assert states(story)["a"] == "NOTHING_TO_UNDO"


async def test_a_cancel_stops_a_parallel_for_each_and_undoes_what_was_done(env: Environment) -> None:
    definition = """
        saga: wide
        steps:
          - {id: a, for_each: [1, 2, 3, 4, 5, 6], max_parallel: 2, uses: book, compensate: unbook}
    """
    move, begun, go = gate()
    env.plan["do a#2"] = [move]
    async with env.serving(definition) as client:
        saga = await begin(client, "wide")
        await wait_for_event(begun)
        await client.cancel(saga)
        go.set()
        story = await finished(client, saga)
    assert story["state"] == "COMPENSATED"
    assert await env.effects() == []


async def test_a_rejection_and_a_cancel_at_once_have_one_reason(env: Environment) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def refuse(_: Step) -> None:
        begun.set()
        await go.wait()
        raise Rejected("no")

    env.plan["do c"] = [refuse]
    async with env.serving(LINE) as client:
        saga = await begin(client, "line")
        await wait_for_event(begun)
        assert await handle(client, saga).execute_update("cancel") == "accepted"
        go.set()
        story = await finished(client, saga)
    assert story["reason"]["kind"] == "cancelled", "recorded before the end of the attempt, so it wins"
    assert states(story)["c"] == "REJECTED"


async def _cancel_seen(client, saga: str) -> bool:
    story = await client.show(saga)
    return story["cancel_requested"] or story["state"] in ("COMPENSATED", "COMPLETED")
