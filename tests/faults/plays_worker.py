"""Faults of worker processes: killed and frozen at the named points (cells 1, 2, 3, 4, 8)."""

from __future__ import annotations

import asyncio

from tests.faults.cells import TARGETS
from tests.faults.evidence import activities_of
from tests.faults.gates import Target
from tests.faults.stage import Stage

PREVIOUS = {
    TARGETS["B"]: Target("debit", "do"),
    TARGETS["P"]: Target("order", "do"),
    TARGETS["A"]: Target("capture", "do"),
    TARGETS["C"]: Target("order", "undo"),
}
"""The operation right before the one that is hit."""


async def killed_before_start(stage: Stage) -> None:
    """P1: the attempt is scheduled and nobody has begun it when its worker is gone."""
    effects, flows = await stage.worker(), await stage.own_flows()
    previous = PREVIOUS[stage.target]
    async with stage.gate("commit", previous) as gate:
        await stage.start()
        await gate.reached(by=effects.pid)
        flows.freeze()
        await gate.open()
        await stage.recorded(previous)
    effects.kill()
    flows.thaw()
    await stage.scheduled(stage.target)
    await asyncio.sleep(0.3)
    assert await stage.pending_state() == "SCHEDULED"
    stage.fault_is_over()
    await stage.worker()


async def killed_before_commit(stage: Stage) -> None:
    """P2: the effect is made and not committed when the worker dies."""
    worker = await stage.worker()
    async with stage.gate("effect") as gate:
        await stage.start()
        await gate.reached(by=worker.pid)
        worker.kill()
    question = "select count(*) from journal where step = %s and op = %s"
    await stage.backend_is_gone(worker.pid)
    assert (await stage.admin(question, stage.target.step, stage.target.op))[0][0] == 0, "attempt 1 left a trace"
    stage.fault_is_over()
    await stage.worker()


async def killed_after_effect(stage: Stage) -> None:
    """P3, P8: the effect is committed, and the worker dies before it can say so."""
    worker = await stage.worker()
    async with stage.gate("commit") as gate:
        await stage.start()
        await gate.reached(by=worker.pid)
        worker.freeze()
    await stage.effect_is_there()
    worker.kill()
    open_ends = [one.end for one in await activities_of(stage, stage.saga_id) if one.id == stage.activity]
    assert open_ends == ["open"], "Temporal has heard of the effect before the worker died"
    stage.fault_is_over()
    await stage.worker()


async def killed_in_workflow_task(stage: Stage) -> None:
    """P4, P5: the result is recorded, the workflow task has begun, and its worker dies."""
    effects, flows = await stage.worker(), await stage.own_flows()
    async with stage.gate("commit") as gate:
        await stage.start()
        await gate.reached(by=effects.pid)
        flows.freeze()
        await gate.open()
        await stage.recorded(stage.target)
    await stage.until(stage.in_workflow_task, "the workflow task")
    flows.kill()
    stage.fault_is_over()
    await stage.own_flows()
