"""Semantic locks on a real server: who waits, who is woken, and what is left when all have ended."""

from __future__ import annotations

import asyncio
import itertools
import textwrap
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from saga_activities.locks.tables import create_tables
from saga_workers.doctor.saga_checks import check_locks, check_sagas
from saga_workers.stuck import run_reasons, stuck_sagas, stuck_view
from saga_workers.views.locks import list_orphans, release_orphan
from saga_workers.views.saga_list import SagaFilter
from sagas import Rejected
from sagas.errors import RefusedError
from sagas.project import Project
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import SagaView
from sagas.settings.ledger import LockSettings
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, gate, handle, run_saga, wait_for_event

ORDER = """
    saga: order
    input: {type: object, properties: {keys: {type: array}}}
    locks: {keys: "${{ input.keys }}", wait: 20s}
    steps:
      - {id: a, uses: work, compensate: unwork}
      - {id: b, uses: work, compensate: unwork}
"""


@pytest.fixture
async def locks(env: Environment) -> Environment:
    await create_tables(env.engine)
    return env


async def rows(env: Environment, table: str) -> list[Any]:
    async with env.engine.connect() as connection:
        return list(await connection.execute(text(f"select * from {table}")))


async def nothing_is_left(env: Environment) -> bool:
    return not await rows(env, "saga_lock") and not await rows(env, "saga_lock_wait")


async def view(client: Any, saga_id: str) -> dict[str, Any]:
    return await handle(client, saga_id).query("saga")


async def test_the_second_saga_runs_when_the_first_has_ended(locks: Environment) -> None:
    move, begun, go = gate()
    locks.plan["do a"] = [move, {"value": 2}]
    async with locks.serving(ORDER) as client:
        first = await begin(client, "order", {"keys": ["order-7", "a"]})
        await wait_for_event(begun)
        second = await begin(client, "order", {"keys": ["order-7", "z"]})
        waiting = await until(lambda: _waits_for(client, second))
        assert [(event["key"], event["owner"]) for event in waiting] == [("order-7", first)]
        assert [request.what for request in locks.asked] == ["do a"]
        go.set()
        stories = [await finished(client, id) for id in (first, second)]
    assert [story["state"] for story in stories] == ["COMPLETED", "COMPLETED"]
    assert stories[0]["ended_at"] <= stories[1]["steps"][0]["started_at"]
    assert stories[1]["locks"]["state"] == "RELEASED"
    assert await nothing_is_left(locks)


async def _waits_for(client: Any, saga_id: str) -> Any:
    return ((await view(client, saga_id)).get("locks") or {}).get("waits_for")


async def test_who_does_not_get_them_in_time_runs_nothing(locks: Environment) -> None:
    move, begun, go = gate()
    locks.plan["do a"] = [move, {"value": 2}]
    impatient = ORDER.replace("saga: order", "saga: impatient").replace("20s", "300ms")
    failing = ORDER.replace("saga: order", "saga: failing").replace("20s", "fail")
    async with locks.serving(ORDER, impatient, failing) as client:
        first = await begin(client, "order", {"keys": ["k"]})
        await wait_for_event(begun)
        for name in ("impatient", "failing"):
            story = await run_saga(client, name, {"keys": ["k", "free"]})
            assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "locked")
            assert story["reason"]["message"].startswith(f"k is held by {first} since ")
            assert {row["state"] for row in story["steps"]} == {"PENDING"}
        assert [row.key for row in await rows(locks, "saga_lock")] == ["k"]
        go.set()
        assert (await finished(client, first))["state"] == "COMPLETED"
    assert await nothing_is_left(locks)


async def test_sagas_that_lock_a_b_and_b_a_all_end(locks: Environment) -> None:
    locks.plan["do b"] = [Rejected("no"), {"value": 1}]
    async with locks.serving(ORDER) as client:
        ids = [await begin(client, "order", {"keys": keys}) for keys in (["a", "b"], ["b", "a"]) * 4]
        stories = await asyncio.gather(*(finished(client, id) for id in ids))
    assert sorted(story["state"] for story in stories) == ["COMPENSATED", *["COMPLETED"] * 7]
    spans = sorted((story["locks"]["since"], story["ended_at"]) for story in stories)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert await nothing_is_left(locks)


async def test_a_cancelled_waiter_lets_the_next_one_pass(locks: Environment) -> None:
    move, begun, go = gate()
    locks.plan["do a"] = [move, {"value": 2}]
    async with locks.serving(ORDER) as client:
        first = await begin(client, "order", {"keys": ["k"]})
        await wait_for_event(begun)
        second = await begin(client, "order", {"keys": ["k", "free"]})
        await until(lambda: _waits_for(client, second))
        third = await begin(client, "order", {"keys": ["free"]})
        assert (await until(lambda: _waits_for(client, third)))[0]["owner"] == second
        await handle(client, second).execute_update("cancel", {"who": "ada"})
        assert (await finished(client, second))["reason"]["kind"] == "cancelled"
        assert (await finished(client, third))["state"] == "COMPLETED"
        go.set()
        await finished(client, first)
    assert await nothing_is_left(locks)


@pytest.mark.slow
async def test_a_waiter_that_was_terminated_keeps_nobody_waiting(locks: Environment) -> None:
    move, begun, go = gate()
    locks.plan["do a"] = [move, {"value": 2}]
    async with locks.serving(ORDER) as client:
        first = await begin(client, "order", {"keys": ["k"]})
        await wait_for_event(begun)
        second = await begin(client, "order", {"keys": ["k"]})
        await until(lambda: _waits_for(client, second))
        third = await begin(client, "order", {"keys": ["k"]})
        await until(lambda: _waits_for(client, third))
        await handle(client, second).terminate("test")
        go.set()
        assert (await finished(client, third))["state"] == "COMPLETED"
        await finished(client, first)
    assert await nothing_is_left(locks)


async def test_a_nested_saga_and_an_undo_are_re_entrant(locks: Environment) -> None:
    parent = """
        saga: parent
        locks: {keys: [k]}
        steps:
          - {id: inner, uses: saga, with: {name: order, input: {keys: [k, own]}}}
          - {id: z, uses: work, compensate: unwork}
    """
    locks.plan["do z"] = [Rejected("no")]
    async with locks.serving(ORDER, parent) as client:
        story = await run_saga(client, "parent")
    assert (story["state"], story["reason"]["step"]) == ("COMPENSATED", "z")
    assert locks.log() == ["do a", "do b", "do z", "undo b", "undo a"]
    assert await nothing_is_left(locks)


async def test_an_undo_waits_for_the_release_of_the_locks(locks: Environment) -> None:
    move, begun, go = gate()
    locks.plan["do b"] = [move]
    async with locks.serving(ORDER) as client:
        saga = await begin(client, "order", {"keys": ["k"]})
        await wait_for_event(begun)
        async with locks.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as writer:
            await writer.exec_driver_sql("begin immediate")
            go.set()
            assert (await finished(client, saga))["state"] == "COMPLETED"
            await client.undo(saga, reason="returned", who="ada")
            await until(lambda: _is_loading(client, saga + UNDO_SUFFIX))
            await writer.exec_driver_sql("rollback")
        await handle(client, saga + UNDO_SUFFIX).result()
        assert (await client.show(saga))["state"] == "COMPENSATED"
    assert await nothing_is_left(locks)


async def test_an_undo_goes_on_without_its_locks_if_an_operator_says_so(locks: Environment) -> None:
    """Another saga holds them and does not end."""
    move, begun, go = gate()
    async with locks.serving(ORDER) as client:
        saga = await begin(client, "order", {"keys": ["k"]})
        assert (await finished(client, saga))["state"] == "COMPLETED"
        locks.plan["do a"] = [move]
        other = await begin(client, "order", {"keys": ["k"]})
        await wait_for_event(begun)
        await client.undo(saga, reason="returned", who="ada")
        await until(lambda: rows(locks, "saga_lock_wait"))
        decision = {"step": "saga.lock", "decision": "retry", "reason": "it hangs", "who": "ada"}
        with pytest.raises(RefusedError, match="possible: skip"):
            await client.resolve(saga, decision)
        with pytest.raises(RefusedError, match="no undo of the saga waits for its locks"):
            await client.resolve(other, {**decision, "decision": "skip"})
        await client.resolve(saga, {**decision, "decision": "skip"})
        await handle(client, saga + UNDO_SUFFIX).result()
        shown = await client.show(saga)
        assert (shown["state"], shown["operator"][-1]["step"]) == ("COMPENSATED", "saga.lock")
        assert not await rows(locks, "saga_lock_wait")
        assert [row.saga_id for row in await rows(locks, "saga_lock")] == [other]
        go.set()
        assert (await finished(client, other))["state"] == "COMPLETED"
    assert await nothing_is_left(locks)


async def _is_loading(client: Any, undo_id: str) -> bool:
    pending = (await handle(client, undo_id).describe()).raw_description.pending_activities
    return any("is not closed yet" in activity.last_failure.message for activity in pending)


async def test_locks_are_kept_while_parked(locks: Environment) -> None:
    locks.plan["do b"] = [Rejected("no")]
    locks.plan["undo a"] = [Rejected("never")]
    async with locks.serving(ORDER) as client:
        story = await run_saga(client, "order", {"keys": ["k"]})
        assert story["state"] == "PARKED"
        assert [row.saga_id for row in await rows(locks, "saga_lock")] == [story["id"]]


@pytest.mark.slow
async def test_a_waiter_and_a_holder_continue_on_another_worker(locks: Environment) -> None:
    move, begun, go = gate()
    locks.plan["do a"] = [move, {"value": 2}]
    async with locks.serving(ORDER) as client:
        first = await begin(client, "order", {"keys": ["k"]})
        await wait_for_event(begun)
        second = await begin(client, "order", {"keys": ["k"]})
        await until(lambda: _waits_for(client, second))
    go.set()
    async with locks.again() as client:
        assert [(await finished(client, id))["state"] for id in (first, second)] == ["COMPLETED"] * 2
    assert await nothing_is_left(locks)


@pytest.mark.slow
async def test_a_release_without_its_connection_is_shown_and_can_be_left(
    locks: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_reasons, "MANY_ATTEMPTS", 2)
    waiting = """
        saga: order
        locks: {keys: [k]}
        steps: [{id: w, uses: wait, with: {signal: go}}]
    """
    text = {"order": textwrap.dedent(waiting)}
    url = {"shop": locks.url}
    before = make_project(tmp_path / "before", text, [], address=locks.address, connections=url, locks="shop")
    async with running_worker(before) as client:
        saga = await begin(client, "order")
        await until(lambda: rows(locks, "saga_lock"))
    moved = before.settings.connections["shop"].model_copy(update={"name": "moved"})
    elsewhere = {"connections": {"moved": moved}, "locks": LockSettings(connection="moved")}
    after = Project(before.settings.model_copy(update=elsewhere))
    async with running_worker(after) as client:
        await client.signal(saga, "go")
        shown = await until(lambda: _stuck(client, saga))
        assert shown.state == "COMPLETED"
        [reason, advice] = shown.stuck
        assert reason.startswith("the release of its locks was attempted ")
        assert "shop" in reason
        assert advice.endswith(f"saga resolve {saga} saga.release skip --reason '…'")
        listed = [
            stuck_saga
            async for stuck_saga in stuck_sagas.list_stuck(client.locator, SagaFilter(saga="order"), limit=1000)
        ]
        assert [advice in (row.stuck or ()) for row in listed if row.id == saga] == [True]
        told = await check_sagas(client.temporal, after)
        assert [(message.ok, advice in message.message) for message in told if saga in message.message] == [
            (False, True)
        ]

        decision = {"step": "saga.release", "decision": "retry", "reason": "because", "who": "ada"}
        with pytest.raises(RefusedError, match="possible: skip"):
            await client.resolve(saga, decision)
        await client.resolve(saga, {**decision, "decision": "skip"})
        await handle(client, saga).result()
        view = await client.show(saga)
        assert (view["state"], view["operator"][0]["step"], view.get("stuck")) == ("COMPLETED", "saga.release", None)
        with pytest.raises(RefusedError, match="has already ended"):
            await client.resolve(saga, {**decision, "decision": "skip"})
        (orphan,) = await list_orphans(client.locator, before.settings)
        assert orphan.owner == saga
        (told,) = await check_locks(client.temporal, before.settings)
        assert (told.ok, told.message) == (False, f"{saga} is over and holds k")


async def _stuck(client: Any, saga: str) -> SagaView | None:
    shown = await stuck_view.read_view_with_stuck(client.locator, saga)
    return shown if shown.stuck else None


async def test_the_lock_of_a_terminated_saga_is_found_and_released(locks: Environment) -> None:
    move, begun, go = gate()
    locks.plan["do a"] = [move, {"value": 2}]
    async with locks.serving(ORDER) as client:
        first = await begin(client, "order", {"keys": ["k"]})
        await wait_for_event(begun)
        second = await begin(client, "order", {"keys": ["k"]})
        await until(lambda: _waits_for(client, second))
        settings = client.project.settings
        assert await list_orphans(client.locator, settings) == []
        await handle(client, first).terminate("test")
        go.set()
        (orphan,) = await list_orphans(client.locator, settings)
        assert (orphan.owner, orphan.keys, orphan.waits) == (first, ("k",), False)
        assert await release_orphan(client.temporal, settings, orphan.owner, orphan.holder) is None
        assert (await finished(client, second))["state"] == "COMPLETED"
        assert await list_orphans(client.locator, settings) == []
    assert await nothing_is_left(locks)
