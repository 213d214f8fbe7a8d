"""A saga that an operator pauses begins nothing, in either direction, until it is resumed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.client import Client as Temporal
from temporalio.client import WithStartWorkflowOperation, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy

from saga_activities.locks.tables import create_tables
from saga_workers.client import Client
from saga_workers.views.reported_reasons import reported_reasons
from sagas import Rejected, Step
from sagas.errors import RefusedError, UsageError
from sagas.protocol.saga_view import SagaView
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import (
    Environment,
    begin,
    gate,
    handle,
    row,
    states,
    wait_for_event,
)

LINE = """
    saga: line
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: b, uses: book, compensate: unbook}
      - {id: c, uses: work, effect: none}
"""


async def _held(client: Client, saga_id: str, *ids: str) -> SagaView:
    """Wait until exactly these are held back."""

    async def seen() -> bool:
        view = await client.view(saga_id)
        return view.paused is not None and view.paused.held == ids

    await until(seen)
    return await client.view(saga_id)


async def test_a_paused_saga_begins_no_step(env: Environment) -> None:
    move, begun, go = gate()
    env.plan["do a"] = [move]
    async with env.serving(LINE) as client:
        saga = await begin(client, "line")
        await wait_for_event(begun)
        view = await client.pause(saga, reason="the shop is closed", who="mia")
        assert view.paused is not None
        assert (view.paused.who, view.paused.reason, view.paused.held) == ("mia (unverified)", "the shop is closed", ())
        go.set()
        view = await _held(client, saga, "b")
        assert states(view.to_json())["a"] == "DONE"
        assert reported_reasons(view) == [f"{view.pause_text}; `saga resume {saga}` ends it"]
        assert "⏸ paused by mia (unverified)" in str(await handle(client, saga).query("__temporal_workflow_metadata"))
    async with env.again() as client:  # another worker, which replays the history
        await _held(client, saga, "b")
        assert env.log() == ["do a"]
        view = await client.resume(saga)
        assert view.paused is None
        story = await finished(client, saga)
    assert (story["state"], story.get("paused")) == ("COMPLETED", None)
    assert story["operator"][0]["who"] == "mia (unverified)"
    assert [decision["decision"] for decision in story["operator"]] == ["pause", "resume"]
    assert env.log() == ["do a", "do b", "do c"]


async def test_a_cancel_while_paused_takes_effect_afterwards(env: Environment) -> None:
    """The step that is held back never begins, and what was done is undone after the pause only."""
    move, begun, go = gate()
    env.plan["do a"] = [move]
    async with env.serving(LINE) as client:
        saga = await begin(client, "line")
        await wait_for_event(begun)
        await client.pause(saga)
        go.set()
        await _held(client, saga, "b")
        assert await client.cancel(saga, reason="enough") == "accepted"
        view = await client.view(saga)
        assert (view.state, view.cancel_requested) == ("COMPENSATING", True)
        assert await env.effects() == ["a"]
        await client.resume(saga)
        story = await finished(client, saga)
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "cancelled")
    assert env.log() == ["do a", "undo a"]
    assert row(story, "b")["attempts"] == 0


async def test_a_paused_saga_undoes_nothing(env: Environment) -> None:
    move, begun, go = gate()
    env.plan |= {"undo b": [move], "do c": [Rejected("no")]}
    async with env.serving(LINE) as client:
        saga = await begin(client, "line")
        await wait_for_event(begun)
        await client.pause(saga)
        go.set()
        await _held(client, saga, "a")
        assert await env.effects() == ["a"]
        await client.resume(saga)
        assert (await finished(client, saga))["state"] == "COMPENSATED"
    assert await env.effects() == []


async def test_the_attempts_in_flight_go_on(env: Environment) -> None:
    """A pause holds back the next call, not the retries of this one."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def fail(step: Step) -> None:
        begun.set()
        await go.wait()
        raise ValueError("not yet")

    env.plan["do a"] = [fail, 7]
    async with env.serving(LINE.replace("{id: a,", "{id: a, retry: {initial_interval: 10ms},")) as client:
        saga = await begin(client, "line")
        await wait_for_event(begun)
        await client.pause(saga)
        go.set()
        await _held(client, saga, "b")
        assert env.log() == ["do a", "do a"]
        await client.resume(saga)
        assert (await finished(client, saga))["state"] == "COMPLETED"


async def test_a_decision_while_paused_waits(env: Environment) -> None:
    env.plan["do a"] = [Rejected("no"), 1]
    async with env.serving(LINE.replace("{id: a,", "{id: a, on_failure: park,")) as client:
        saga = await begin(client, "line")
        assert (await finished(client, saga))["state"] == "PARKED"
        await client.pause(saga)
        await client.resolve(saga, {"step": "a", "decision": "retry", "reason": "because", "who": "ada"})
        await _held(client, saga, "a")
        assert env.log() == ["do a"]
        await client.resume(saga)
        assert (await finished(client, saga))["state"] == "COMPLETED"


async def test_a_nested_saga_is_not_started(env: Environment) -> None:
    child = "saga: child\nsteps:\n  - {id: x, uses: book, compensate: unbook}\n"
    parent = """
        saga: parent
        steps:
          - {id: a, uses: book, compensate: unbook}
          - {id: n, uses: saga, with: {name: child}}
    """
    move, begun, go = gate()
    env.plan["do a"] = [move]
    async with env.serving(parent, child) as client:
        saga = await begin(client, "parent")
        await wait_for_event(begun)
        await client.pause(saga)
        go.set()
        await _held(client, saga, "n")
        assert env.log() == ["do a"]
        await client.cancel(saga)
        await client.resume(saga)
        story = await finished(client, saga)
    assert story["state"] == "COMPENSATED"
    assert await env.effects() == []


async def test_a_deadline_passes_while_paused(env: Environment) -> None:
    move, begun, go = gate()
    env.plan["do a"] = [move]
    async with env.serving(LINE.replace("steps:", "deadline: 1s\n    steps:")) as client:
        saga = await begin(client, "line")
        await wait_for_event(begun)
        await client.pause(saga)
        go.set()
        await _held(client, saga, "b")

        async def rolled_back() -> bool:
            return (await client.view(saga)).state == "COMPENSATING"

        await until(rolled_back)
        assert await env.effects() == ["a"]
        await client.resume(saga)
        story = await finished(client, saga)
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "deadline")
    assert env.log() == ["do a", "undo a"]


@pytest.mark.slow
async def test_calls_that_wait_for_room_are_held_back(env: Environment) -> None:
    """Commands are spread over workflow tasks: those that are not sent yet wait, too."""
    many = """
        saga: many
        input: {type: object, properties: {items: {type: array}, text: {type: string}}}
        steps:
          - {id: a, for_each: "${{ input.items }}", max_parallel: 200, uses: work, with: {value: "${{ input.text }}"},
             compensate: unwork}
          - {id: b, uses: work, effect: none}
    """
    env.plan = {f"do a#{number}": [number] for number in range(60)}  # only the arguments are large
    async with env.serving(many):
        pass  # makes the project
    assert env.project is not None
    temporal = await Temporal.connect(env.address)
    queue = env.project.settings.temporal.task_queue
    input = {"items": list(range(60)), "text": "x" * 100_000}
    start = WithStartWorkflowOperation(
        "many", input, id=f"many-{queue}", task_queue=queue, id_conflict_policy=WorkflowIDConflictPolicy.FAIL
    )
    async with env.again() as client:
        # It is taken in the workflow task that begins the calls, the first of which are sent with it.
        await temporal.execute_update_with_start_workflow("pause", {"who": "mia"}, start_workflow_operation=start)
        run = await start.workflow_handle()

        async def all_accounted() -> bool:
            paused = (await client.view(run.id)).paused
            return paused is not None and len(env.log()) + len(paused.held) == 60

        await until(all_accounted)
        sent = len(env.log())
        assert sent < 40
        await asyncio.sleep(0.5)
        assert await _scheduled(client, run.id) == sent
        await client.resume(run.id)
        assert (await finished(client, run.id))["state"] == "COMPLETED"
    assert sorted(env.log()) == sorted([f"do a#{n}" for n in range(60)] + ["do b"])


async def _scheduled(client: Client, saga_id: str) -> int:
    events = (await handle(client, saga_id).fetch_history()).events
    kinds = [event.activity_task_scheduled_event_attributes.activity_type.name for event in events]
    return kinds.count("work")


LOCKED = """
    saga: locked
    locks: {keys: ["k"], wait: 20s}
    steps:
      - {id: a, uses: book, compensate: unbook}
"""
HOLDER = LOCKED.replace("saga: locked", "saga: holder").replace("id: a", "id: h")


async def test_locks_are_requested_while_paused(env: Environment) -> None:
    """A paused saga takes its locks: a lock left free in the queue would hold up others."""
    move, begun, go = gate()
    env.plan["do h"] = [move]
    await create_tables(env.engine)
    async with env.serving(LOCKED, HOLDER) as client:
        first = await begin(client, "holder")
        await wait_for_event(begun)
        saga = await begin(client, "locked")
        await until(lambda: _waits_for_locks(client, saga))
        await client.pause(saga)
        go.set()
        await finished(client, first)
        view = await _held(client, saga, "a")
        assert view.locks is not None
        assert view.locks.state == "HELD"
        await client.resume(saga)
        assert (await finished(client, saga))["state"] == "COMPLETED"


async def test_the_wait_for_locks_does_not_count_the_pause(env: Environment) -> None:
    """The timer fires while the saga is paused, and it gets its locks afterwards."""
    move, begun, go = gate()
    env.plan["do h"] = [move]
    await create_tables(env.engine)
    async with env.serving(LOCKED.replace("20s", "3s"), HOLDER) as client:
        first = await begin(client, "holder")
        await wait_for_event(begun)
        saga = await begin(client, "locked")
        await until(lambda: _waits_for_locks(client, saga))
        await client.pause(saga)

        async def timer_has_fired() -> bool:
            events = (await handle(client, saga).fetch_history()).events
            return any(event.HasField("timer_fired_event_attributes") for event in events)

        await until(timer_has_fired)
        assert (await client.view(saga)).state == "RUNNING"
        go.set()
        await finished(client, first)
        await _held(client, saga, "a")
        await client.resume(saga)
        assert (await finished(client, saga))["state"] == "COMPLETED"


async def _waits_for_locks(client: Client, saga_id: str) -> bool:
    return (await client.view(saga_id)).lock_wait is not None


async def test_what_cannot_be_paused_or_resumed(env: Environment) -> None:
    move, begun, go = gate()
    env.plan["do a"] = [move]
    async with env.serving(LINE) as client:
        with pytest.raises(UsageError, match="there is no saga"):
            await client.resume("nobody")
        saga = await begin(client, "line")
        await wait_for_event(begun)
        with pytest.raises(RefusedError, match="is not paused"):
            await client.resume(saga)
        first = await client.pause(saga, who="mia")
        again = await client.pause(saga, who="ben")
        assert first.paused == again.paused, "the first pause stays"
        go.set()
        await client.resume(saga)
        await finished(client, saga)
        with pytest.raises(RefusedError, match="has already ended COMPLETED"):
            await client.pause(saga)


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize(
    "request_", [None, {}, {"who": 7, "reason": ["x"]}, {"who": "x" * 100_000, "reason": "\ud800"}]
)
async def test_a_pause_by_any_client(env: Environment, request_: Any) -> None:
    """The Web UI sends what a person has typed."""
    move, begun, go = gate()
    env.plan["do a"] = [move]
    async with env.serving(LINE) as client:
        saga = await begin(client, "line")
        await wait_for_event(begun)
        view = await handle(client, saga).execute_update("pause", *([] if request_ is None else [request_]))
        assert len(view["paused"]["who"]) < 10_000
        with pytest.raises(WorkflowUpdateFailedError):
            await handle(client, saga).execute_update("pause", "not an object")
        for update in ("pause", "resume", "cancel"):
            with pytest.raises(WorkflowUpdateFailedError):
                await handle(client, saga).execute_update(update, args=[{}, {}])
        await handle(client, saga).execute_update("resume")
        go.set()
        assert (await finished(client, saga))["state"] == "COMPLETED"
