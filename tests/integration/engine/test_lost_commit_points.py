"""A saga without a pivot is past its commit point, and its run is deleted: nothing of it is undone afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.common import WorkflowIDConflictPolicy

from saga_workers.client import Client
from saga_workers.stuck.resumption import start_again
from saga_workers.worker import before_reset
from sagas import Rejected
from sagas.errors import RefusedError
from tests.helpers import run_changes
from tests.helpers.local_worker import finished
from tests.helpers.run_changes import delete_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import Environment, begin, handle, resolve, row
from tests.integration.engine.repeated_runs import waits_at

TRIED = """
    saga: tried
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: go, uses: wait, with: {signal: go}}
      - {id: h, uses: work, retry: {max_attempts: 1}, confirm: settle, compensate: unwork}
      - {id: g, uses: work, confirm: settle, compensate: unwork}
"""
OTHER = """
    saga: other
    steps:
      - {id: x, uses: book, confirm: fix, compensate: unbook}
"""
GUARDED_LAST = (
    TRIED
    + """\
      - {id: z, uses: book, compensate: unbook}
"""
)


async def committed_and_deleted(client: Client) -> str:
    """A saga that has confirmed its step h, and not g, without a run."""
    id = await begin(client, "tried")
    await handle(client, id).signal("go")

    async def confirms() -> bool:
        states = [((row(await client.show(id), step).get("confirmation")) or {}).get("state") for step in "hg"]
        return states[0] == "DONE" and states[1] is not None

    async def recorded() -> bool:
        story = await client.locator.ledger.find(id)
        return story is not None and story.view.phase == "committed"

    await until(confirms)
    if client.locator.ledger.configured:
        await until(recorded)
    await delete_run(client.temporal, id)
    return id


async def resume(client: Client, id: str, **told: Any) -> None:
    await start_again(client, await client.locator.locate(id), who="anna", reason="lost", **told)
    await waits_at(client, id, "go")


async def check_that_it_only_goes_forward(env: Environment, client: Client, id: str, asks: str = "") -> None:
    """``asks``: the step about which an operator was asked before its run was deleted, and is asked again."""
    with pytest.raises(RefusedError, match="past the point of no return"):
        await client.cancel(id)
    env.plan["confirm g"] = [None]
    await handle(client, id).signal("go")
    story = await finished(client, id)
    if asks:
        assert [parked["step"] for parked in story["parked"]] == [asks]
        story = await resolve(client, id, asks, "retry")
    assert story["state"] == "COMPLETED"
    assert (await env.effects(), [call for call in env.log() if call.startswith("undo")]) == (["a"], [])


async def test_the_ledger_tells_of_a_commit_point(env: Environment, orders: AsyncEngine) -> None:
    env.plan["confirm g"] = [Rejected("no")]
    async with env.serving(TRIED) as client:
        id = await committed_and_deleted(client)
        await resume(client, id)
        assert (await client.show(id))["phase"] == "committed"
        await check_that_it_only_goes_forward(env, client, id)


async def test_a_second_deletion_does_not_forget_the_commit_point(env: Environment, orders: AsyncEngine) -> None:
    env.plan["confirm g"] = [Rejected("no")]
    async with env.serving(TRIED) as client:
        id = await committed_and_deleted(client)
        env.plan["do h"] = [Rejected("not again")]
        await resume(client, id)
        await handle(client, id).signal("go")
        story = await finished(client, id)
        assert (story["state"], story["phase"], story["parked"][0]["step"]) == ("PARKED", "committed", "h")
        await delete_run(client.temporal, id)
        env.plan["do h"] = [None]
        await resume(client, id)
        await check_that_it_only_goes_forward(env, client, id, asks="h")


async def replace(client: Client, id: str, saga: str) -> None:
    """Start another saga under the id, which ends the run that has it, and await its end."""
    queue = client.project.settings.temporal.task_queue
    policy = WorkflowIDConflictPolicy.TERMINATE_EXISTING
    await client.temporal.start_workflow(saga, {}, id=id, task_queue=queue, id_conflict_policy=policy)

    async def recorded() -> bool:
        story = await client.locator.ledger.find(id)
        return story is not None and story.view.saga == saga and story.view.ended_at is not None

    await until(recorded)


async def test_the_end_of_another_saga_is_no_commit_point(env: Environment, orders: AsyncEngine) -> None:
    async with env.serving(GUARDED_LAST, OTHER) as client:
        id = await begin(client, "tried")
        await waits_at(client, id, "go")
        await replace(client, id, "other")
        await resume(client, id)
        assert (await client.show(id))["phase"] == "forward"
        await client.cancel(id)
        assert ((await finished(client, id))["state"], await env.effects()) == ("COMPENSATED", ["confirm x", "x"])


async def test_the_end_of_another_saga_hides_no_commit_point(env: Environment, orders: AsyncEngine) -> None:
    env.plan |= {"confirm g": [Rejected("no")], "do x": [Rejected("no")]}
    async with env.serving(TRIED, OTHER) as client:
        id = await committed_and_deleted(client)
        await replace(client, id, "other")
        await resume(client, id)
        assert (await client.show(id))["phase"] == "committed"
        await check_that_it_only_goes_forward(env, client, id)


async def test_without_a_ledger_an_operator_has_to_tell(env: Environment) -> None:
    env.plan["confirm g"] = [Rejected("no")]
    async with env.serving(TRIED) as client:
        id = await committed_and_deleted(client)
        with pytest.raises(RefusedError, match=f"look there for {id}/h/confirm, {id}/g/confirm") as refused:
            await resume(client, id)
        assert f"so that nothing is undone: saga resume {id} --committed;" in (refused.value.help or "")
        with pytest.raises(RefusedError) as refused:
            await resume(client, id, not_ended=True, definition=client.project.definition("tried"))
        repeated = f"saga resume {id} --definition FILE --not-ended"
        assert f"so that nothing is undone: {repeated} --committed;" in (refused.value.help or "")
        assert f"if none has: {repeated} --not-committed" in (refused.value.help or "")
        assert "\n" not in (refused.value.help or "")  # a terminal shows it on one line
        await resume(client, id, committed=True)
        await check_that_it_only_goes_forward(env, client, id)


async def test_an_operator_who_knows_that_nothing_was_confirmed_is_believed(env: Environment) -> None:
    async with env.serving(TRIED) as client:
        id = await begin(client, "tried")
        await waits_at(client, id, "go")
        await delete_run(client.temporal, id)
        await resume(client, id, committed=False)
        await client.cancel(id)
        assert ((await finished(client, id))["state"], await env.effects()) == ("COMPENSATED", [])


async def test_nobody_has_to_tell_of_a_saga_that_had_not_come_to_a_guarded_step(env: Environment) -> None:
    async with env.serving(GUARDED_LAST) as client:
        id = await begin(client, "tried")
        await waits_at(client, id, "go")
        await delete_run(client.temporal, id)
        with pytest.raises(RefusedError, match="--committed does not count") as refused:
            await resume(client, id, committed=True)
        assert refused.value.help == f"saga resume {id}"
        await resume(client, id)
        await client.cancel(id)
        assert ((await finished(client, id))["state"], await env.effects()) == ("COMPENSATED", [])


async def test_a_reset_whose_former_run_is_lost_undoes_nothing_that_may_be_confirmed(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(before_reset, "_MAX_RUNS", 0)
    env.plan["confirm g"] = [Rejected("no")]
    async with env.serving(TRIED) as client:
        id = await begin(client, "tried")
        await waits_at(client, id, "go")  # a signal before the first task would stay in the history after the reset
        await handle(client, id).signal("go")
        assert (await finished(client, id))["state"] == "PARKED"
        await run_changes.reset_run(client.temporal, id, keeps_signals=False)
        await waits_at(client, id, "go")
        with pytest.raises(RefusedError, match="nobody knows whether"):
            await client.cancel(id)
        story = await client.show(id)
        assert story["phase"] == "forward"
        env.plan["confirm g"] = [None]
        await handle(client, id).signal("go")
        assert (await finished(client, id))["state"] == "COMPLETED"
        assert not any(call.startswith("undo") for call in env.log())
