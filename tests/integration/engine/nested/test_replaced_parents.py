"""Parents that are terminated, reset or deleted while their nested saga runs, and go on in another run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from saga_workers.stuck.continuation import continue_saga
from saga_workers.temporal.temporal_runs import ENDED_FROM_OUTSIDE, describe_run
from saga_workers.views.saga_list import SagaFilter, list_saga_runs, query_sagas
from sagas import Client, Rejected
from sagas.errors import RefusedError
from tests.helpers.local_worker import finished
from tests.helpers.waiting import until
from tests.integration.engine.environment import (
    Environment,
    begin,
    gate,
    handle,
    resolve,
    wait_for_event,
)
from tests.integration.engine.nested.families import (
    COMMITTED,
    GO,
    REPLACED,
    begin_waiting_child,
    book,
    define_child,
    define_parent,
    has_state,
    reset,
)

PARENT = define_parent(book("b"))
WAITED_FOR = GO.replace("go}}", "go, timeout: 1h}}")
CHILD = define_child(book("x"), WAITED_FOR, book("y", "with: {value: 3}, compensate: unbook"))


@pytest.mark.sampled(keep=1)
@REPLACED
async def test_another_run_of_the_parent_waits_for_the_child_that_runs(
    env: Environment, replace: Callable[[Client, str], Awaitable[None]]
) -> None:
    async with env.serving(PARENT, CHILD) as client:
        saga = await begin_waiting_child(client)
        child = (await handle(client, f"{saga}/child").describe()).run_id
        await replace(client, saga)
        await until(lambda: _asks(client, saga))
        await handle(client, f"{saga}/child").signal("go")
        story = await finished(client, saga)
        assert (story["state"], story["output"]) == ("COMPLETED", {"child": 3})
        assert (await handle(client, f"{saga}/child").describe()).run_id == child
    assert await env.effects() == ["a", "b", "x", "y"]


async def _asks(client: Client, saga: str) -> bool:
    """Return whether the newest run of the saga has asked how its nested saga ended."""
    if await describe_run(client.temporal, saga) is None:
        return False
    history = await handle(client, saga).fetch_history()
    names = [event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events]
    return "saga.nested" in names


async def test_a_child_that_another_run_has_started_is_cancelled_with_its_parent(env: Environment) -> None:
    async with env.serving(PARENT, CHILD) as client:
        saga = await begin_waiting_child(client)
        await reset(client, saga)
        await until(lambda: _asks(client, saga))
        await handle(client, saga).cancel()
        story = await finished(client, saga)
        child = await client.show(f"{saga}/child")
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "cancelled")
    assert (child["state"], child["reason"]["kind"]) == ("COMPENSATED", "parent")
    assert await env.effects() == []


async def test_a_rejection_of_a_child_that_another_run_has_started_is_one(env: Environment) -> None:
    env.plan["do y"] = [Rejected("no room")]
    async with env.serving(PARENT, CHILD) as client:
        saga = await begin_waiting_child(client)
        await reset(client, saga)
        await until(lambda: _asks(client, saga))
        await handle(client, f"{saga}/child").signal("go")
        story = await finished(client, saga)
    assert (story["state"], story["reason"]["kind"], story["reason"]["message"]) == (
        "COMPENSATED",
        "rejected",
        "no room",
    )
    assert await env.effects() == []


async def test_what_is_parked_in_a_child_that_another_run_has_started_is_shown(env: Environment) -> None:
    child = define_child(book("x"), WAITED_FOR, book("y", "with: {value: 3}, compensate: unbook, on_failure: park"))
    env.plan["do y"] = [Rejected("no room"), {"value": 3}]
    async with env.serving(PARENT, child) as client:
        saga = await begin_waiting_child(client)
        await reset(client, saga)
        await until(lambda: _asks(client, saga))
        await handle(client, f"{saga}/child").signal("go")

        async def shows() -> bool:
            parked = (await client.show(saga))["parked"]
            return [(at["step"], "no room" in at["why"]) for at in parked] == [("child", True)]

        await until(shows)
        await resolve(client, f"{saga}/child", "y", "retry")
        await has_state(client, saga, "COMPLETED")
    assert await env.effects() == ["a", "b", "x", "y"]


async def test_a_terminated_parent_is_undone_with_its_running_child(env: Environment) -> None:
    async with env.serving(PARENT, CHILD) as client:
        saga = await begin_waiting_child(client)
        await handle(client, saga).terminate("by mistake")
        assert await continue_saga(client.locator, saga, "ada") == "undone; it is COMPENSATED"
        child = await client.show(f"{saga}/child")
        assert (child["state"], child["reason"]["kind"]) == ("COMPENSATED", "parent")
        assert (await client.show(saga))["state"] == "COMPENSATED"
        await until(lambda: is_listed_as(client, saga, "COMPENSATED"))
        await until(lambda: is_terminated_in_visibility(client, saga))
        assert not await is_listed_as(client, saga, "TERMINATED")
    assert env.log() == ["do a", "do x", "undo x", "undo a"]
    assert await env.effects() == []


async def is_listed_as(client: Client, saga_id: str, state: str) -> bool:
    listed = query_sagas(client.locator, SagaFilter(states=(state,)), limit=1000)
    return saga_id in [view.id async for view in listed]


async def is_terminated_in_visibility(client: Client, saga_id: str) -> bool:
    terminated = SagaFilter(workflow_id=saga_id, where=ENDED_FROM_OUTSIDE)
    return [run.id async for run in list_saga_runs(client.temporal, terminated)] == [saga_id]


async def test_a_terminated_parent_past_its_commit_point_goes_on_with_its_running_child(env: Environment) -> None:
    async with env.serving(COMMITTED, CHILD) as client:
        saga = await begin_waiting_child(client)
        await handle(client, saga).terminate("by mistake")
        continuing = asyncio.create_task(continue_saga(client.locator, saga, "ada"))
        await until(lambda: _asks(client, f"{saga}~undo"))
        await handle(client, f"{saga}/child").signal("go")
        assert await continuing == "continued; it is COMPLETED"
        assert (await client.show(saga))["output"] == {"child": 3}
    assert await env.effects() == ["a", "x", "y"]


async def test_a_terminated_parent_undoes_a_child_that_completed_meanwhile(env: Environment) -> None:
    async with env.serving(PARENT, CHILD) as client:
        saga = await begin_waiting_child(client)
        await handle(client, saga).terminate("by mistake")
        await handle(client, f"{saga}/child").signal("go")
        await has_state(client, f"{saga}/child", "COMPLETED")
        assert await continue_saga(client.locator, saga, "ada") == "undone; it is COMPENSATED"
        assert (await client.show(f"{saga}/child"))["state"] == "COMPENSATED"
    assert env.log() == ["do a", "do x", "do y", "undo y", "undo x", "undo a"]
    assert await env.effects() == []


async def test_a_parent_that_is_terminated_during_the_undo_of_its_child_waits_for_it(env: Environment) -> None:
    move, begun, go = gate()
    env.plan |= {"do b": [Rejected("no")], "undo y": [move]}
    async with env.serving(PARENT, CHILD) as client:
        saga = await begin_waiting_child(client)
        await handle(client, f"{saga}/child").signal("go")
        await wait_for_event(begun)
        undo = handle(client, f"{saga}/child~undo")
        run = (await undo.describe()).run_id
        await handle(client, saga).terminate("by mistake")
        continuing = asyncio.create_task(continue_saga(client.locator, saga, "ada"))
        await until(lambda: _asks(client, f"{saga}~undo"))
        go.set()
        assert await continuing == "undone; it is COMPENSATED"
        assert (await undo.describe()).run_id == run
    assert await env.effects() == []


async def test_a_terminated_parent_is_undone_with_its_terminated_child(env: Environment) -> None:
    async with env.serving(PARENT, CHILD) as client:
        saga = await begin_waiting_child(client)
        await handle(client, saga).terminate("by mistake")
        await handle(client, f"{saga}/child").terminate("by mistake")
        assert await continue_saga(client.locator, saga, "ada") == "undone; it is COMPENSATED"
        await has_state(client, f"{saga}/child", "COMPENSATED")
    assert env.log() == ["do a", "do x", "undo x", "undo a"]


async def test_a_terminated_run_that_had_not_begun_is_refused(env: Environment) -> None:
    async with env.serving(PARENT, CHILD):
        assert env.project is not None
    async with await Client.connect(env.project) as client:
        saga = await begin(client, "parent")
        await handle(client, saga).terminate("by mistake")
    async with env.again() as client:
        with pytest.raises(RefusedError, match="closed before it had begun"):
            await continue_saga(client.locator, saga, "ada")
    assert env.log() == []


async def test_a_terminated_child_that_is_skipped_is_a_residue(env: Environment) -> None:
    async with env.serving(PARENT, CHILD) as client:
        saga = await begin_waiting_child(client)
        await handle(client, f"{saga}/child").terminate("by mistake")
        parked = (await finished(client, saga))["parked"]
        assert f"saga resume {saga}/child" in parked[0]["why"]
        story = await resolve(client, saga, "child", "skip")
    assert (story["state"], [(row["step"], row["kind"]) for row in story["residue"]]) == (
        "RESIDUE",
        [("child", "effect_unclear")],
    )
    assert await env.effects() == ["a", "b", "x"]
