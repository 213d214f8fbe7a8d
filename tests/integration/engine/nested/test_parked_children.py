"""A nested saga that is parked, as its parents show it (guarantees, rule 14), on a real server."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from saga_workers.client import Client
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.views import oldest_runs
from saga_workers.views.parked import ParkedList, read_parked
from saga_workers.views.period_report import read_report
from saga_workers.views.saga_list import SagaFilter
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
    resolve,
    states,
    wait_for_event,
)
from tests.integration.engine.nested.families import book, define, nested

TOP = define("top", book("a"), nested("inner", "middle"))
MIDDLE = define("middle", book("b"), nested("deep", "bottom"))
BOTTOM = define("bottom", book("x"), book("y", "compensate: unbook, on_failure: park"))
LAST = "{id: last, uses: work, effect: none}"


async def _view_when_blocked(client: Client, saga: str, *, blocked: bool = True) -> dict[str, Any]:
    """The view once it shows that the saga needs an operator (or no longer does)."""

    async def look() -> dict[str, Any] | None:
        try:
            story = await client.show(saga)
        except UsageError:
            return None  # it has not been started yet
        return story if SagaView.from_json(story).waits_for_a_person == blocked else None

    return await until(look)


async def test_every_ancestor_names_the_saga_that_blocks_it(env: Environment) -> None:
    env.plan["do y"] = [Rejected("ask somebody"), "allowed"]
    async with env.serving(TOP, MIDDLE, BOTTOM) as client:
        saga = await begin(client, "top")
        bottom = f"{saga}/inner/deep"
        story = await _view_when_blocked(client, saga)
        assert (story["state"], states(story)["inner"]) == ("RUNNING", "RUNNING")
        [row] = story["parked"]
        assert (row["step"], row["op"]) == ("inner", "do")
        assert f"{bottom} waits for an operator at y: " in row["why"]
        assert row["commands"][0].startswith(f"saga resolve {bottom} y retry")
        [child] = story["children"]
        assert (child["id"], child["blocks"], child["waits"][0]["id"]) == (f"{saga}/inner", "saga", bottom)
        assert (await finished(client, saga, "30s"))["state"] == "RUNNING", "waiting for the end does not wait for ever"
        details = await handle(client, saga).query("__temporal_workflow_metadata")
        assert f"saga resolve {bottom} y retry" in str(details)

        task_queue = client.project.settings.temporal.task_queue
        wanted = SagaFilter(saga="top", task_queue=task_queue)
        parked_list = await until(lambda: _waiting(client, wanted))
        assert [(message.saga, message.saga_id, message.step) for message in parked_list] == [("bottom", bottom, "y")]
        every = await read_parked(client.locator, SagaFilter(task_queue=task_queue), nested=True)
        assert [(operation.saga_id, operation.step) for operation in every.operations] == [(bottom, "y")], (
            "each operation once"
        )
        # Other tests leave sagas of this name.
        stuck = [row async for row in list_stuck(client.locator, wanted, limit=99) if row.id == saga]
        assert [(stuck_saga.id, (stuck_saga.stuck or [""])[0].split(":")[0]) for stuck_saga in stuck] == [
            (saga, "inner is blocked (do)")
        ]

        await resolve(client, bottom, "y", "retry")
        story = await finished(client, saga)
    assert story["state"] == "COMPLETED"
    assert story["parked"] == []
    assert [set(child) for child in story["children"]] == [{"id", "step", "saga", "state"}]


async def _waiting(client: Client, wanted: SagaFilter) -> Any:
    return (await read_parked(client.locator, wanted, nested=True)).operations


async def test_a_decision_on_a_blocked_step_names_the_child_to_resolve(env: Environment) -> None:
    env.plan["do y"] = [Rejected("ask somebody"), "allowed"]
    async with env.serving(MIDDLE, BOTTOM) as client:
        saga = await begin(client, "middle")
        await _view_when_blocked(client, saga)
        decision = {"step": "deep", "decision": "retry", "reason": "because", "who": "ada"}
        with pytest.raises(RefusedError, match="decide there about y"):
            await client.resolve(saga, decision)
        await resolve(client, f"{saga}/deep", "y", "retry")
        assert (await finished(client, saga))["state"] == "COMPLETED"


async def test_a_parent_with_other_work_is_not_blocked(env: Environment) -> None:
    deep = nested("deep", "bottom", "needs: [b]")
    parent = define("middle", book("b"), deep, LAST.replace("id: last", "id: last, needs: [b]"))
    move, begun, go = gate()
    env.plan |= {"do y": [Rejected("ask somebody"), "allowed"], "do last": [move]}
    async with env.serving(parent, BOTTOM) as client:
        saga = await begin(client, "middle")
        await wait_for_event(begun)

        async def reported() -> Any:
            story = await client.show(saga)
            return story if story["parked"] else None

        story = await until(reported)
        assert [child["blocks"] for child in story["children"]] == ["step"]
        assert not SagaView.from_json(story).waits_for_a_person
        go.set()
        await _view_when_blocked(client, saga)
        await resolve(client, f"{saga}/deep", "y", "retry")
        assert (await finished(client, saga))["state"] == "COMPLETED"


async def test_a_child_that_parks_again_is_reported_each_time(env: Environment) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def refuse(_: Step) -> None:
        begun.set()
        await go.wait()
        raise Rejected("second")

    env.plan["do y"] = [Rejected("first"), refuse, "allowed"]
    async with env.serving(MIDDLE, BOTTOM) as client:
        saga = await begin(client, "middle")
        assert "first" in (await _view_when_blocked(client, saga))["parked"][0]["why"]
        decision = {"step": "y", "decision": "retry", "reason": "because", "who": "ada"}
        await client.resolve(f"{saga}/deep", decision)
        await wait_for_event(begun)
        assert (await _view_when_blocked(client, saga, blocked=False))["parked"] == []
        go.set()
        assert "second" in (await _view_when_blocked(client, saga))["parked"][0]["why"]
        await client.resolve(f"{saga}/deep", decision)
        assert (await finished(client, saga))["state"] == "COMPLETED"


async def test_cancelling_a_blocked_parent_compensates_its_parked_child(env: Environment) -> None:
    env.plan["do y"] = [Rejected("ask somebody")]
    async with env.serving(TOP, MIDDLE, BOTTOM) as client:
        saga = await begin(client, "top")
        await _view_when_blocked(client, saga)
        assert await client.cancel(saga, reason="enough") == "accepted"
        story = await finished(client, saga)
    assert (story["state"], story["parked"]) == ("COMPENSATED", [])
    assert await env.effects() == []


async def test_an_undo_of_a_child_that_is_parked_blocks_its_parent(env: Environment) -> None:
    env.plan |= {"do last": [Rejected("no")], "undo x": [Rejected("not today"), None], "do y": ["fine"]}
    async with env.serving(f"{TOP}\n  - {LAST}", MIDDLE, BOTTOM) as client:
        saga = await begin(client, "top")
        story = await _view_when_blocked(client, saga)
        bottom = f"{saga}/inner/deep"
        [row] = story["parked"]
        assert (story["state"], row["step"], row["op"]) == ("COMPENSATING", "inner", "undo")
        assert f"{bottom} waits for an operator at x" in row["why"]
        wanted = SagaFilter(saga="top", task_queue=client.project.settings.temporal.task_queue)
        inbox = await until(lambda: _waiting(client, wanted))
        assert [(message.saga_id, message.step, message.op) for message in inbox] == [(bottom, "x", "undo")]
        await client.resolve(bottom, {"step": "x", "decision": "retry", "reason": "because", "who": "ada"})
        story = await finished(client, saga)
    assert (story["state"], story["parked"]) == ("COMPENSATED", [])
    assert await env.effects() == []


async def test_a_requested_undo_shows_the_child_that_blocks_it(env: Environment) -> None:
    env.plan["undo x"] = [Rejected("not today"), None]
    async with env.serving(TOP, MIDDLE, BOTTOM) as client:
        saga = await begin(client, "top")
        assert (await finished(client, saga))["state"] == "COMPLETED"
        await client.undo(saga, reason="changed my mind", who="ada")
        story = await _view_when_blocked(client, saga)
        assert [row["step"] for row in story["parked"]] == ["inner"]
        await client.resolve(f"{saga}/inner/deep", {"step": "x", "decision": "retry", "reason": "b", "who": "ada"})
        assert (await finished(client, saga))["state"] == "COMPENSATED"


async def test_the_blocking_child_is_shown_after_a_worker_restart(env: Environment) -> None:
    env.plan["do y"] = [Rejected("ask somebody"), "allowed"]
    async with env.serving(TOP, MIDDLE, BOTTOM) as client:
        saga = await begin(client, "top")
        await _view_when_blocked(client, saga)
    async with env.again() as client:
        story = await _view_when_blocked(client, saga)
        assert [row["step"] for row in story["parked"]] == ["inner"]
        await handle(client, f"{saga}/inner/deep").terminate("by mistake")
        story = await finished(client, f"{saga}/inner")
        assert (story["state"], "terminated" in story["parked"][0]["why"]) == ("PARKED", True)
        story = await _view_when_blocked(client, saga)
        assert "terminated" in story["parked"][0]["why"]


async def test_a_child_past_its_commit_point_blocks_a_parent_in_rollback(env: Environment) -> None:
    child = define("child", book("x", "pivot: true"), "{id: y, uses: work, on_failure: park}")
    inner = nested("inner", "child", "compensate: {uses: unwork, with: {value: all}}")
    parent = define("parent", book("a"), inner)
    env.plan["do y"] = [Rejected("never"), "after all"]
    async with env.serving(parent, child) as client:
        saga = await begin(client, "parent")
        await _view_when_blocked(client, saga)
        assert await client.cancel(saga) == "accepted"
        story = await _view_when_blocked(client, saga)  # it was cleared by the cancel, and the child has reported again
        assert [row["step"] for row in story["parked"]] == ["inner"]
        await client.resolve(f"{saga}/inner", {"step": "y", "decision": "retry", "reason": "b", "who": "ada"})
        story = await finished(client, saga)
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "cancelled")


ASKS = """
    saga: asks
    steps:
      - {id: y, uses: work, compensate: unwork, on_failure: park}
"""


async def test_with_a_limit_the_oldest_are_found_without_a_list_of_all(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oldest_runs, "MOST_LISTED", 3)
    env.plan["do y"] = [Rejected("ask somebody")]
    async with env.serving(ASKS) as client:
        sagas = [await begin(client, "asks") for _ in range(6)]
        for saga in sagas:
            await finished(client, saga)
        criteria = SagaFilter(saga="asks", task_queue=client.project.settings.temporal.task_queue)

        async def parked(limit: int | None) -> ParkedList | None:
            seen = await read_parked(client.locator, criteria, limit=limit)
            return seen if seen.asked + seen.omitted == len(sagas) else None  # the visibility store lags

        first = await until(lambda: parked(2))
        assert (first.asked, first.omitted) == (2, 4)
        assert {row.saga_id for row in first.operations} == set(sagas[:2])
        left_out = "the first 2 of 6 sagas that may wait, those that started first; use --limit N for more"
        assert first.left_out == left_out
        every = await until(lambda: parked(None))
        assert {row.saga_id for row in every.operations} == set(sagas)
        assert every.left_out is None
        now = datetime.now(UTC)
        report = await read_report(client.locator, replace(criteria, since=now - timedelta(hours=1)), (), now, limit=2)
        assert (sum(group["count"] for group in report.parked), report.parked_left_out) == (2, left_out)
