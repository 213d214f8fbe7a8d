"""Faults of worker processes: killed and frozen at the named points (cells 1, 2, 3, 4, 8)."""

from __future__ import annotations

import asyncio

from tests.faults.breakpoints import Point
from tests.faults.cell_environment import CellEnvironment
from tests.faults.cells import PREVIOUS, TARGETS
from tests.faults.evidence.activity_history import activities_of
from tests.helpers.waiting import until


async def killed_before_start(env: CellEnvironment) -> None:
    """P1: the worker is killed after the attempt is scheduled and before it starts."""
    effects, workflow_worker = await env.worker(), await env.own_workflow_worker()
    previous = PREVIOUS[env.target]
    async with env.breakpoint_at("commit", previous) as stop:
        await env.start()
        await stop.reached(by=effects.pid)
        workflow_worker.freeze()
        await stop.open()
        await env.recorded(previous)
    effects.kill()
    await asyncio.sleep(1)  # the server learns that nobody polls any more; else it would give the attempt to the dead
    workflow_worker.thaw()
    await env.recorded(env.target, "open")
    assert await env.pending_state() == "SCHEDULED"
    env.fault_is_over()
    await env.worker()


async def killed_before_commit(env: CellEnvironment) -> None:
    """P2: the worker is killed after the effect and before its commit."""
    worker = await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        worker.kill()
    question = "select count(*) from journal where step = %s and op = %s"
    await env.sessions_are_over(worker.pid)
    assert (await env.admin(question, env.target.step, env.target.op))[0][0] == 0, "attempt 1 left a trace"
    env.fault_is_over()
    await env.worker()


async def killed_after_effect(env: CellEnvironment) -> None:
    """P3, P8: the worker is killed after the commit and before it reports the result."""
    worker = await env.worker()
    async with env.breakpoint_at("commit") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        worker.freeze()
    await env.effect_is_there()
    worker.kill()
    open_ends = [
        activity.end for activity in await activities_of(env.handle) if env.is_activity(activity.id, env.target)
    ]
    assert open_ends == ["open"], "Temporal has heard of the effect before the worker died"
    env.fault_is_over()
    await env.worker()


async def killed_in_workflow_task(env: CellEnvironment, point: Point = "commit") -> None:
    """P4, P5: the worker is killed during the workflow task that processes the result. ``point`` is its last stop."""
    effects, workflow_worker = await env.worker(), await env.own_workflow_worker()
    async with env.breakpoint_at(point) as stop:
        await env.start()
        await stop.reached(by=effects.pid)
        workflow_worker.freeze()
        await stop.open()
        await env.recorded(env.target)
    await until(env.in_workflow_task, "the workflow task")
    workflow_worker.kill()
    env.fault_is_over()
    await env.own_workflow_worker()


async def frozen_before_insert(env: CellEnvironment) -> None:
    """A zombie: its worker freezes with the first statement in flight, which arrives after the saga is decided.

    Before the commit point the saga is cancelled meanwhile, so that a seal decides; later another worker does the work.
    """
    proxy, worker = env.proxies["database"], await env.worker()
    proxy.arm(f"'{env.target.step}', 1, 'do', '{env.target.op}'".encode(), "hold")
    await env.start()
    await until(lambda: _truth(proxy.triggered > 0), "the first statement")
    worker.freeze()
    if env.target in (TARGETS["B"], TARGETS["P"]):
        assert await env.cancel() == ("accepted" if env.target == TARGETS["B"] else "recorded")
    await env.worker()
    env.fault_is_over()
    await env.finished()
    proxy.release()
    await asyncio.sleep(0.2)  # the late statement runs while its worker is still frozen
    worker.thaw()
    await env.sessions_are_over(worker.pid)


async def frozen_in_transaction(env: CellEnvironment) -> None:
    """A zombie that holds the guard's row: the database ends its transaction when its attempt's time is over."""
    worker = await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        worker.freeze()
    await env.worker()
    env.fault_is_over()
    await env.finished()
    worker.thaw()
    await env.sessions_are_over(worker.pid)


async def frozen_after_commit(env: CellEnvironment) -> None:
    """A zombie whose effect is there while Temporal knows nothing of it; before the commit point with a cancel."""
    worker = await env.worker()
    async with env.breakpoint_at("commit") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        worker.freeze()
    await env.effect_is_there()
    if env.target in (TARGETS["B"], TARGETS["P"]):
        assert await env.cancel() == ("accepted" if env.target == TARGETS["B"] else "recorded")
    await env.worker()
    env.fault_is_over()
    await env.finished()
    worker.thaw()
    await env.sessions_are_over(worker.pid)


async def redeployed(env: CellEnvironment) -> None:
    """A new worker with other definitions takes over in the middle: the running saga keeps the one it began with."""
    old = await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=old.pid)
        text = (env.folder / "transfer.saga.yaml").read_text(encoding="utf-8")
        before, _, after = text.partition("  - id: ship")
        shorter = before + "  - id: thank" + after.partition("  - id: thank")[2]
        shorter = shorter.replace("- {uses: bank.release,", "- {uses: bank.release_by_hand,", 1).replace(
            ', note: "${{ input.notes.release }}"', ""
        )
        (env.folder / "transfer.saga.yaml").write_text(shorter, encoding="utf-8")
        await env.worker()
        stopping = asyncio.create_task(asyncio.to_thread(old.stop))
        await asyncio.sleep(0.3)
    assert await stopping == 0, old.tail()
    env.fault_is_over()


async def _truth(value: bool) -> bool:
    return value
