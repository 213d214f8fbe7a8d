"""A paused connection holds every step that needs it, and a paused name every step of its sagas."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.ledger.pauses import end_pause
from saga_workers.client import Client
from saga_workers.stuck.resumption import start_again
from saga_workers.views.reported_reasons import reported_reasons
from sagas import Step
from sagas.presentation.web_ui_text import no_effect_text, step_symbol
from tests.helpers import run_changes
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, gate, handle, row, run_saga, wait_for_event
from tests.integration.engine.pausing import asked_again, held, pause

LINE = """
    saga: line
    steps:
      - {id: a, uses: book, compensate: unbook, retry: {max_attempts: 2, initial_interval: 10ms}}
      - {id: b, uses: book, compensate: unbook}
"""
WAITING = """
    saga: waiting
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
"""
PARENT = """
    saga: parent
    steps:
      - {id: child, uses: saga, with: {name: middle}}
"""
MIDDLE = """
    saga: middle
    steps:
      - {id: y, uses: book, compensate: unbook}
      - {id: inner, uses: saga, with: {name: inner}}
"""
INNER = """
    saga: inner
    steps:
      - {id: a, uses: work, compensate: unwork}
      - {id: b, uses: work, compensate: unwork}
"""
OTHER = """
    saga: other
    steps:
      - {id: x, uses: work, effect: none}
"""


async def test_a_saga_that_starts_later_waits_for_a_connection(env: Environment, orders: AsyncEngine) -> None:
    async with env.serving(LINE, OTHER) as client:
        await pause(orders, "connection", "shop")
        saga = await begin(client, "line")
        await asked_again(client, saga, 3)  # more often than it may make attempts
        view = await held(client, saga, "a")
        text = f"paused with the connection shop by mia since {view.paused and view.paused.at} because: a move"
        assert (view.state, view.pause_text) == ("RUNNING", text)
        assert reported_reasons(view) == [f"{text}; `saga resume --connection shop` ends it"]
        assert text in str(await handle(client, saga).query("__temporal_workflow_metadata"))
        assert (await run_saga(client, "other"))["state"] == "COMPLETED"  # it does not need the connection
    async with env.again() as client:  # another worker
        await held(client, saga, "a")
        assert env.log() == ["do x"]
        assert await end_pause(orders, "connection", "shop")
        story = await finished(client, saga)
    assert (story["state"], story.get("paused")) == ("COMPLETED", None)
    assert [step["attempts"] for step in story["steps"]] == [1, 1]


async def test_an_attempt_in_flight_ends_and_the_next_one_is_not_used_up(env: Environment, orders: AsyncEngine) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def fail(step: Step) -> None:
        begun.set()
        await go.wait()
        raise ValueError("not yet")

    env.plan["do a"] = [fail, 7]
    async with env.serving(LINE) as client:
        saga = await begin(client, "line")
        await wait_for_event(begun)
        await pause(orders, "connection", "shop")
        go.set()
        await asked_again(client, saga, 3)
        assert env.log() == ["do a"]
        await end_pause(orders, "connection", "shop")
        story = await finished(client, saga)
    assert (story["state"], row(story, "a")["attempts"]) == ("COMPLETED", 2)


async def test_a_cancel_counts_and_the_undo_waits_too(env: Environment, orders: AsyncEngine) -> None:
    move, begun, go = gate()
    env.plan["do a"] = [move]
    async with env.serving(LINE) as client:
        saga = await begin(client, "line")
        await wait_for_event(begun)
        await pause(orders, "connection", "shop")
        go.set()
        await held(client, saga, "b")
        assert await client.cancel(saga, reason="enough") == "accepted"
        view = await held(client, saga, "a")
        assert view.state == "COMPENSATING"
        assert await env.effects() == ["a"]
        await end_pause(orders, "connection", "shop")
        story = await finished(client, saga)
        [never_called] = [step for step in (await client.view(saga)).steps if step.id == "b"]
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "cancelled")
    assert (step_symbol(never_called), no_effect_text(never_called)) == ("·", "held back, nothing happened")
    assert env.log() == ["do a", "undo a"]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("repeated", ["reset", "resumed"])
async def test_a_step_that_is_held_in_a_repeated_run_is_undone(
    env: Environment, orders: AsyncEngine, repeated: str
) -> None:
    """The run before has done it, and only its guard knows."""
    async with env.serving(WAITING) as client:
        saga = await begin(client, "waiting")
        await until(lambda: waits(client, saga, "go"))
        await pause(orders, "connection", "shop")
        if repeated == "reset":
            await run_changes.reset_run(client.temporal, saga)
        else:
            await run_changes.delete_run(client.temporal, saga)
            await start_again(client, await client.locator.locate(saga), not_ended=True, who="mia", reason="lost")
        await held(client, saga, "a")
        assert await client.cancel(saga) == "accepted"
        await until(lambda: is_compensating(client, saga))
        await end_pause(orders, "connection", "shop")
        story = await finished(client, saga)
    assert (story["state"], row(story, "a")["state"], await env.effects()) == ("COMPENSATED", "COMPENSATED", [])


async def waits(client: Client, saga_id: str, step: str) -> bool:
    return row(await client.show(saga_id), step)["state"] == "RUNNING"


async def is_compensating(client: Client, saga_id: str) -> bool:
    return (await client.view(saga_id)).state == "COMPENSATING"


async def test_a_deadline_counts(env: Environment, orders: AsyncEngine) -> None:
    async with env.serving("saga: line\ndeadline: 2s\nsteps: [{id: a, uses: work, compensate: unwork}]\n") as client:
        await pause(orders, "saga", "line")
        story = await run_saga(client, "line")
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "deadline")
    assert env.log() == []


async def test_a_paused_name_holds_only_its_own_sagas(env: Environment, orders: AsyncEngine) -> None:
    async with env.serving(LINE, OTHER) as client:
        await pause(orders, "saga", "other")
        saga = await begin(client, "other")
        await held(client, saga, "x")
        assert (await run_saga(client, "line"))["state"] == "COMPLETED"
        await end_pause(orders, "saga", "other")
        assert (await finished(client, saga))["state"] == "COMPLETED"
    assert env.log() == ["do a", "do b", "do x"]


async def test_a_paused_name_holds_the_sagas_nested_in_its_own(env: Environment, orders: AsyncEngine) -> None:
    """At any depth, in both directions, and no other saga of these names."""
    move, begun, go = gate()
    env.plan["do a"] = [move, 7]
    async with env.serving(PARENT, MIDDLE, INNER) as client:
        await pause(orders, "saga", "parent")
        saga = await begin(client, "parent")
        middle, inner = f"{saga}/child", f"{saga}/child/inner"
        view = await held(client, middle, "y")
        assert view.pause_text is not None
        assert view.pause_text.startswith("paused with all sagas of parent by mia")
        await end_pause(orders, "saga", "parent")
        await wait_for_event(begun)
        await pause(orders, "saga", "parent")
        go.set()
        await held(client, inner, "b")
        assert (await run_saga(client, "inner"))["state"] == "COMPLETED"
        await client.cancel(saga, reason="enough")
        await held(client, inner, "a")
        assert [what for what in env.log() if what.startswith("undo")] == []
        await end_pause(orders, "saga", "parent")
        assert (await finished(client, saga))["state"] == "COMPENSATED"
    assert env.log() == ["do y", "do a", "do a", "do b", "undo a", "undo y"]


@pytest.mark.parametrize(
    ("step", "calls"),
    [
        pytest.param("{id: a, uses: book, compensate: unbook, execution: local, timeout: 2s}", ["do a"], id="local"),
        pytest.param("{id: a, uses: book, compensate: unbook, confirm: fix}", ["do a", "confirm a"], id="confirm"),
        pytest.param("{id: a, uses: book, pivot: true}", ["do a"], id="pivot"),
        pytest.param(
            "{id: a, uses: careless, compensate: unwork, probe: {uses: look, done: 'response.answer == 1'}}",
            ["do a", "probe a"],
            id="probe",
        ),
    ],
)
async def test_every_call_of_a_step_waits(env: Environment, orders: AsyncEngine, step: str, calls: list[str]) -> None:
    """Each of its calls is held back, and made once after the pause."""
    async with env.serving(f"saga: line\nsteps:\n  - {step}\n") as client:
        await pause(orders, "saga", "line")
        saga = await begin(client, "line")
        for number, call in enumerate(calls):
            await held(client, saga, "a")
            assert env.log() == calls[:number]
            begun, go = asyncio.Event(), asyncio.Event()

            async def move(step: Step, begun: asyncio.Event = begun, go: asyncio.Event = go) -> object:
                begun.set()
                await go.wait()
                if step.op == "do" and "probe a" in calls:
                    raise RuntimeError("lost")
                return {"answer": 1}

            env.plan[call] = [move]
            await end_pause(orders, "saga", "line")
            await wait_for_event(begun)
            await pause(orders, "saga", "line")
            go.set()
        await end_pause(orders, "saga", "line")
        story = await finished(client, saga)
    assert (story["state"], env.log()) == ("COMPLETED", calls)


async def test_a_worker_keeps_a_pause_while_the_ledger_does_not_answer(env: Environment, orders: AsyncEngine) -> None:
    async with env.serving(LINE) as client:
        await pause(orders, "connection", "shop")
        saga = await begin(client, "line")
        await held(client, saga, "a")
        async with orders.begin() as connection:
            await connection.exec_driver_sql("alter table saga_pause rename to hidden")
        await asked_again(client, saga, 4)
        assert env.log() == []
        async with orders.begin() as connection:
            await connection.exec_driver_sql("delete from hidden")
            await connection.exec_driver_sql("alter table hidden rename to saga_pause")
        assert (await finished(client, saga))["state"] == "COMPLETED"
