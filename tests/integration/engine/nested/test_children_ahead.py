"""Nested sagas that an earlier run of their parent has started, when another one goes backward before it has come to
them, and nested sagas whose run was deleted when they are to be undone; on a real server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from saga_workers.client import Client
from sagas import Rejected
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import delete_run, reset_run
from tests.integration.engine.environment import Environment, begin, handle, resolve, row, send_signed
from tests.integration.engine.nested.families import (
    GO,
    REPLACED,
    begin_waiting_child,
    book,
    define,
    define_child,
    define_parent,
    delete_and_resume,
    has_state,
    nested,
)
from tests.integration.engine.repeated_runs import waits_at

FIRST = GO.replace("go", "first")
WAITING_PARENT = define("parent", book("a"), FIRST, nested("child", "child"), GO)
"""It waits before its nested saga, and after it."""
CHILD = define_child(book("x"), book("y"))
WAITING_CHILD = define_child(book("x"), GO, book("y"))


async def _begun(client: Client) -> str:
    id = await begin(client, "parent")
    await waits_at(client, id, "first")
    await handle(client, id).signal("first")
    return id


async def _cancelled(client: Client, id: str) -> dict[str, object]:
    await waits_at(client, id, "first")
    assert await client.cancel(id) == "accepted"
    return await finished(client, id)


async def _reset_without_signals(client: Client, id: str) -> None:
    await reset_run(client.temporal, id, keeps_signals=False)


REPLACED_EARLY = pytest.mark.parametrize("replace", [_reset_without_signals, delete_and_resume])
Replace = Callable[[Client, str], Awaitable[None]]


@pytest.mark.sampled(turns="replace")
@REPLACED_EARLY
async def test_a_completed_child_ahead_is_undone(env: Environment, replace: Replace) -> None:
    async with env.serving(WAITING_PARENT, CHILD) as client:
        id = await _begun(client)
        await waits_at(client, id)
        await replace(client, id)
        story = await _cancelled(client, id)
        assert (story["state"], (await client.show(f"{id}/child"))["state"]) == ("COMPENSATED", "COMPENSATED")
    assert (await env.effects(), env.log()[-3:]) == ([], ["undo y", "undo x", "undo a"])


@pytest.mark.sampled(turns="replace")
@REPLACED_EARLY
async def test_a_running_child_ahead_is_rolled_back(env: Environment, replace: Replace) -> None:
    async with env.serving(WAITING_PARENT, WAITING_CHILD) as client:
        id = await _begun(client)
        await waits_at(client, f"{id}/child")
        await replace(client, id)
        story = await _cancelled(client, id)
        shown = await client.show(f"{id}/child")
    assert (story["state"], shown["state"], shown["reason"]["kind"]) == ("COMPENSATED", "COMPENSATED", "parent")
    assert (await env.effects(), env.log()[-2:]) == ([], ["undo x", "undo a"])


async def test_a_deleted_child_ahead_is_started_again_only_to_be_undone(env: Environment) -> None:
    async with env.serving(WAITING_PARENT, CHILD) as client:
        id = await _begun(client)
        await waits_at(client, id)
        await delete_run(client.temporal, f"{id}/child")
        await delete_and_resume(client, id)
        story = await _cancelled(client, id)
        assert (story["state"], (await client.show(f"{id}/child"))["state"]) == ("COMPENSATED", "COMPENSATED")
    assert (await env.effects(), env.log()[-3:]) == ([], ["undo y", "undo x", "undo a"])
    assert [env.log().count(f"do {step}") for step in ("x", "y")] == [1, 1]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("goes_on", [True, False])
async def test_the_latest_generation_of_a_child_is_that_of_another_run_of_its_parent(
    env: Environment, goes_on: bool
) -> None:
    env.plan["do y"] = [Rejected("no room"), {"value": 3}]
    retried = nested("child", "child", "on_failure: park")
    async with env.serving(WAITING_PARENT.replace(nested("child", "child"), retried), CHILD) as client:
        id = await _begun(client)
        await has_state(client, id, "PARKED")
        await send_signed(client, id, {"step": "child", "decision": "retry", "reason": "because", "who": "ada"})
        await waits_at(client, id)
        assert (await client.show(f"{id}/child@2"))["state"] == "COMPLETED"
        await delete_and_resume(client, id)
        if goes_on:
            await waits_at(client, id, "first")
            await handle(client, id).signal("first")
            await waits_at(client, id)
            assert row(await client.show(id), "child")["generation"] == 2
            assert await client.cancel(id) == "accepted"
            story = await finished(client, id)
        else:
            story = await _cancelled(client, id)
        assert (story["state"], (await client.show(f"{id}/child@2"))["state"]) == ("COMPENSATED", "COMPENSATED")
    assert (await env.effects(), env.log()[-3:]) == ([], ["undo y", "undo x", "undo a"])


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("decides", ["compensate", "cancel"])
async def test_a_child_that_was_deleted_while_it_ran_is_undone(env: Environment, decides: str) -> None:
    async with env.serving(define_parent(), WAITING_CHILD) as client:
        id = await begin_waiting_child(client)
        await delete_run(client.temporal, f"{id}/child")
        assert (await finished(client, id))["state"] == "PARKED"
        if decides == "cancel":
            assert await client.cancel(id) == "accepted"
            story = await finished(client, id)
        else:
            story = await resolve(client, id, "child", "compensate")
        assert story["parked"] == []
    assert (story["state"], await env.effects()) == ("COMPENSATED", [])
    assert env.log() == ["do a", "do x", "undo x", "undo a"]


@pytest.mark.sampled(turns="replace")
@REPLACED
async def test_a_child_that_was_deleted_after_its_end_is_undone(env: Environment, replace: Replace) -> None:
    async with env.serving(define_parent(GO), CHILD) as client:
        id = await begin(client, "parent")
        await waits_at(client, id)
        await replace(client, id)
        await waits_at(client, id)
        await delete_run(client.temporal, f"{id}/child")
        assert await client.cancel(id) == "accepted"
        assert (await finished(client, id))["state"] == "COMPENSATED"
    assert (await env.effects(), env.log()[-3:]) == ([], ["undo y", "undo x", "undo a"])


async def test_a_deleted_child_past_its_point_of_no_return_parks_its_parent(env: Environment) -> None:
    # `saga validate` refuses the nested saga where it can tell its name.
    name = "input: {type: object, properties: {name: {enum: [child], default: child}}}\n"
    dynamic = name + define("parent", book("a"), nested("child", '"${{ lower(input.name) }}"'), GO)
    async with env.serving(dynamic, define_child(book("x"), book("y", "pivot: true"))) as client:
        id = await begin(client, "parent")
        await waits_at(client, id)
        await delete_run(client.temporal, f"{id}/child")
        assert await client.cancel(id) == "accepted"
        story = await finished(client, id)
        assert (story["state"], await env.effects()) == ("PARKED", ["a", "x", "y"])
        [parked] = story["parked"]
        assert "past its point of no return" in parked["why"]
        story = await resolve(client, id, "child", "done", evidence="they were called")
    assert (story["state"], await env.effects()) == ("COMPENSATED", ["x", "y"])


async def test_a_deleted_child_of_which_no_guard_knows_parks_its_parent(env: Environment) -> None:
    unguarded = define_child("{id: y, uses: work, with: {value: 3}, compensate: unwork}")
    async with env.serving(define_parent(GO), unguarded) as client:
        id = await begin(client, "parent")
        await waits_at(client, id)
        await delete_run(client.temporal, f"{id}/child")
        assert await client.cancel(id) == "accepted"
        story = await finished(client, id)
        assert story["state"] == "PARKED"
        [parked] = story["parked"]
        assert "no guard has an effect of it" in parked["why"]
        story = await resolve(client, id, "child", "done", evidence="undone by hand")
    assert (story["state"], env.log()) == ("COMPENSATED", ["do a", "do y", "undo a"])
