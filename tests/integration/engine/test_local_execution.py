"""`execution: local`: every end of a local activity means what the same end of a remote one means."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from temporalio.api.enums.v1 import EventType

from saga_activities.guard.schema import create_tables
from sagas import AlreadyCompensated, Rejected, Step, action
from sagas.project import Project
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, gate, handle, row, run_saga, states

LOCAL = """
    saga: here
    defaults: {execution: local, timeout: 2s, retry: {max_attempts: 3, initial_interval: 20ms, max_interval: 50ms}}
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: b, uses: book, compensate: unbook}
    output: {a: "${{ steps.a.result.value }}"}
"""


async def test_it_completes_without_one_event_of_a_remote_activity(env: Environment) -> None:
    async with env.serving(LOCAL) as client:
        id = await begin(client, "here")
        story = await finished(client, id)
        history = await handle(client, id).fetch_history()
    assert (story["state"], story["output"]) == ("COMPLETED", {"a": None})
    assert await env.effects() == ["a", "b"]
    kinds = [event.event_type for event in history.events]
    assert EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED not in kinds
    assert kinds.count(EventType.EVENT_TYPE_MARKER_RECORDED) == 2


async def test_a_rejection_is_final_and_what_was_done_is_undone(env: Environment) -> None:
    env.plan["do b"] = [Rejected("sold out", left=0)]
    async with env.serving(LOCAL) as client:
        story = await run_saga(client, "here")
    assert story["state"] == "COMPENSATED"
    assert story["reason"]["kind"] == "rejected"
    assert story["reason"]["message"] == "sold out"
    assert story["reason"]["details"] == {"left": 0}
    assert env.log() == ["do a", "do b", "undo a"]
    assert await env.effects() == []


async def test_a_failure_is_retried_and_then_undone(env: Environment) -> None:
    env.plan["do b"] = [OSError("no route")]
    async with env.serving(LOCAL) as client:
        story = await run_saga(client, "here")
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "failed")
    assert [request.attempt for request in env.asked if request.what == "do b"] == [1, 2, 3]
    assert row(story, "b")["attempts"] == 3
    assert await env.effects() == []


async def test_a_transient_failure_costs_one_attempt(env: Environment) -> None:
    env.plan["do b"] = [OSError("no route"), {"value": 7}]
    async with env.serving(LOCAL) as client:
        story = await run_saga(client, "here")
    assert story["state"] == "COMPLETED"
    assert row(story, "b")["attempts"] == 2
    assert await env.effects() == ["a", "b"]


PIVOT = LOCAL.replace("{id: b, uses: book, compensate: unbook}", "{id: b, uses: book, pivot: true}")
FIRST_IS_PIVOT = LOCAL.replace("{id: a, uses: book, compensate: unbook}", "{id: a, uses: book, pivot: true}").replace(
    "{id: b, uses: book, compensate: unbook}", "{id: b, uses: book}"
)


@pytest.mark.parametrize(
    "definition", [LOCAL, PIVOT, FIRST_IS_PIVOT], ids=["before the pivot", "the pivot", "after the pivot"]
)
async def test_a_failed_attempt_is_shown_before_the_next_one(env: Environment, definition: str) -> None:
    env.plan["do b"] = [OSError("no route")]
    slow = definition.replace("initial_interval: 20ms, max_interval: 50ms", "initial_interval: 1h")
    async with env.serving(slow) as client:
        id = await begin(client, "here")

        async def failing() -> Any:
            b = row(await client.show(id), "b")
            return b if b["error"] else None

        b = await until(failing)
        assert (b["state"], b["attempts"], b["error"]["message"]) == ("RUNNING", 1, "no route")
        assert b["next_attempt_at"] is not None
        if definition == FIRST_IS_PIVOT:
            await handle(client, id).terminate("it would go on for hours")
            return
        await client.cancel(id)
        assert (await finished(client, id))["state"] == "COMPENSATED"
    assert await env.effects() == []


@pytest.mark.parametrize("definition", [PIVOT, FIRST_IS_PIVOT], ids=["the pivot", "after the pivot"])
async def test_a_pivot_and_what_follows_make_all_their_attempts(env: Environment, definition: str) -> None:
    env.plan["do b"] = [OSError("no route"), OSError("no route"), {"value": 7}]
    async with env.serving(definition) as client:
        story = await run_saga(client, "here")
    assert story["state"] == "COMPLETED"
    assert row(story, "b")["attempts"] == 3
    assert await env.effects() == ["a", "b"]


async def test_a_pivot_that_fails_at_each_attempt_is_undone(env: Environment) -> None:
    env.plan["do b"] = [OSError("no route")]
    async with env.serving(PIVOT) as client:
        story = await run_saga(client, "here")
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "failed")
    assert [request.attempt for request in env.asked if request.what == "do b"] == [1, 2, 3]
    assert row(story, "b")["attempts"] == 3
    assert await env.effects() == []


async def test_a_timeout_leaves_no_effect(env: Environment) -> None:
    async def slow(step: Step) -> None:
        await asyncio.sleep(30)

    env.plan["do b"] = [slow]
    definition = LOCAL.replace("timeout: 2s", "timeout: 300ms").replace("max_attempts: 3", "max_attempts: 2")
    async with env.serving(definition) as client:
        story = await run_saga(client, "here")
    assert story["state"] == "COMPENSATED"
    assert story["reason"]["kind"] in ("failed", "unknown")
    assert story["reason"]["type"] == "Timeout"
    assert env.log().count("do b") == 2
    assert await env.effects() == []


async def test_an_attempt_that_exceeds_its_timeout_is_undone(env: Environment) -> None:
    """A plain `def` in its thread cannot be interrupted: after Temporal's timeout the outcome is unknown."""

    @action("stubborn", connection="shop")
    def stubborn(step: Step) -> None:
        step.sql.execute("insert into effects values (:what)", what=step.id)
        time.sleep(1.5)

    definition = """
saga: outlives
defaults: {retry: {max_attempts: 1, initial_interval: 100ms, max_interval: 500ms}}
steps:
  - {id: a, uses: book, compensate: unbook}
  - {id: b, uses: stubborn, compensate: unbook, execution: local, timeout: 400ms}
"""
    async with running_worker(project_of(env, definition, stubborn)) as client:
        story = await run_saga(client, "outlives")
        assert (story["state"], story["reason"]["type"]) == ("COMPENSATED", "Timeout")
        assert states(story)["a"] == "COMPENSATED"
        # The thread may still be there, and must not write after everything has been undone.
        await asyncio.sleep(2)
        assert await env.effects() == []


async def test_a_local_attempt_is_cancelled_when_its_neighbour_is_refused(env: Environment) -> None:
    """The neighbour is guarded by another database: SQLite lets one transaction write at a time."""
    begun, ended = asyncio.Event(), asyncio.Event()

    @action("hold", connection="other")
    async def hold(step: Step) -> None:
        begun.set()
        try:
            await asyncio.sleep(4)
        finally:
            ended.set()

    async def refuse(step: Step) -> None:
        await begun.wait()
        raise Rejected("no")

    env.plan["do b"] = [refuse]
    definition = """
saga: neighbours
defaults: {execution: local, timeout: 5s}
steps:
  - {id: a, uses: book, compensate: unbook}
  - {id: b, uses: book, compensate: unbook, needs: [a]}
  - {id: c, uses: hold, compensate: hold, needs: [a]}
"""
    other = f"sqlite+aiosqlite:///{env.folder / 'other.db'}"
    engine = create_async_engine(other)
    await create_tables(engine)
    await engine.dispose()
    async with running_worker(project_of(env, definition, hold, other=other)) as client:
        story = await run_saga(client, "neighbours")
    assert (story["state"], story["reason"]["message"]) == ("COMPENSATED", "no")
    # A repeated workflow task repeats a local attempt uncounted, so even a refusal is sealed before it is believed.
    assert states(story) == {"a": "COMPENSATED", "b": "NOTHING_TO_UNDO", "c": "NOTHING_TO_UNDO"}
    assert ended.is_set()
    assert await env.effects() == []


def project_of(env: Environment, definition: str, *more: Callable[..., Any], **connections: str) -> Project:
    """The environment's actions and ``more``, and one definition."""
    name = definition.split("saga:", 1)[1].split()[0]
    return make_project(
        env.folder / name,
        {name: definition},
        [*env.actions(), *more],
        address=env.address,
        connections={"shop": env.url, **connections},
    )


MIXED = LOCAL.replace("    output:", "      - {id: c, uses: work, compensate: unwork}\n    output:")


async def test_a_cancel_is_processed_after_the_local_attempt(env: Environment) -> None:
    """Temporal brings no message while a workflow task runs, and local attempts run inside one."""
    local, begun, go = gate()
    remote, _, never = gate()
    env.plan.update({"do b": [local], "do c": [remote]})
    async with env.serving(MIXED) as client:
        id = await begin(client, "here")
        await begun.wait()
        request = {"who": "ada", "reason": "changed my mind"}
        asking = asyncio.create_task(handle(client, id).execute_update("cancel", request))
        go.set()
        assert await asking == "accepted"
        never.set()
        story = await finished(client, id)
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "cancelled")
    assert {"undo a", "undo b"} <= set(env.log())
    assert await env.effects() == []


async def test_a_native_cancel_undoes_everything_and_closes_the_run_canceled(env: Environment) -> None:
    local, begun, go = gate()
    remote, _, never = gate()
    env.plan.update({"do b": [local], "do c": [remote]})
    async with env.serving(MIXED) as client:
        id = await begin(client, "here")
        await begun.wait()
        await handle(client, id).cancel()
        go.set()
        never.set()
        await finished(client, id)
        described = await handle(client, id).describe()
    assert described.status is not None
    assert described.status.name == "CANCELED"
    assert await env.effects() == []


@pytest.mark.parametrize("backoff", ["3s", "1h"], ids=["within a workflow task", "by a timer"])
async def test_a_native_cancel_ends_a_local_attempt_waiting_for_its_retry(env: Environment, backoff: str) -> None:
    """A short wait is spent inside the workflow task, which receives the cancel at its 8 s heartbeat."""
    retry = f"retry: {{max_attempts: 9, initial_interval: {backoff}, backoff_coefficient: 1, max_interval: {backoff}}}"
    definition = LOCAL.replace("retry: {max_attempts: 3, initial_interval: 20ms, max_interval: 50ms}", retry)
    assert retry in definition
    env.plan["do b"] = [OSError("no route")]
    async with env.serving(definition) as client:
        id = await begin(client, "here")
        await until(lambda: "do b" in env.log())
        await handle(client, id).cancel()
        story = await finished(client, id)
        described = await handle(client, id).describe()
    assert described.status is not None
    assert (story["state"], described.status.name) == ("COMPENSATED", "CANCELED")
    assert states(story) == {"a": "COMPENSATED", "b": "NOTHING_TO_UNDO"}, "the guard sealed what nobody knew"
    assert await env.effects() == []


@pytest.mark.parametrize("step", ["a", "b"])
async def test_a_late_attempt_is_refused(env: Environment, step: str) -> None:
    env.plan[f"do {step}"] = [AlreadyCompensated("it has been undone")]
    async with env.serving(LOCAL) as client:
        story = await run_saga(client, "here")
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "late")
    assert (row(story, step)["state"], row(story, step)["outcome"]) == ("COMPENSATED", "late")
    assert f"undo {step}" not in env.log()
    assert await env.effects() == []


async def test_a_killed_attempt_is_repeated_and_finds_its_own_row(env: Environment) -> None:
    """The worker stops during a local attempt; the next one repeats the whole task, and the guard deduplicates."""
    move, begun, go = gate()
    env.plan["do b"] = [move, {"value": 2}]
    async with env.serving(LOCAL) as client:
        id = await begin(client, "here")
        await begun.wait()
    async with env.again() as client:
        go.set()
        story = await finished(client, id)
    assert story["state"] == "COMPLETED"
    assert await env.effects() == ["a", "b"]
    assert await until(lambda: env.log().count("do b") >= 2)
