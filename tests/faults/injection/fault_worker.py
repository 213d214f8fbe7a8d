"""Faults of worker processes: killed and frozen at the named points (cells 1, 2, 3, 4, 8)."""

from __future__ import annotations

import asyncio

from tests.faults.cell_environment import Stage
from tests.faults.cells import PREVIOUS, TARGETS
from tests.faults.evidence.activity_history import activities_of


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
    await stage.recorded(stage.target, "open")
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
    await stage.sessions_are_over(worker.pid)
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
    open_ends = [one.end for one in await activities_of(stage.handle) if one.id == stage.activity]
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


async def frozen_before_insert(stage: Stage) -> None:
    """A zombie: its first statement is on the way when its worker freezes, and arrives when all is decided.

    Before the commit point somebody cancels meanwhile, so that a seal decides; later another worker does the work.
    """
    proxy, worker = stage.proxies["database"], await stage.worker()
    proxy.arm(f"'{stage.target.step}', 1, 'do', '{stage.target.op}'".encode(), "hold")
    await stage.start()
    await stage.until(lambda: _truth(proxy.triggered > 0), "the first statement")
    worker.freeze()
    if stage.target in (TARGETS["B"], TARGETS["P"]):
        assert await stage.cancel() == ("accepted" if stage.target == TARGETS["B"] else "recorded")
    await stage.worker()
    stage.fault_is_over()
    await stage.finished()
    proxy.release()
    await asyncio.sleep(0.2)  # the late statement is carried out while its worker still cannot hear the answer
    worker.thaw()
    await stage.sessions_are_over(worker.pid)


async def frozen_in_transaction(stage: Stage) -> None:
    """A zombie that holds the guard's row: the database ends its transaction when its attempt's time is over."""
    worker = await stage.worker()
    async with stage.gate("effect") as gate:
        await stage.start()
        await gate.reached(by=worker.pid)
        worker.freeze()
    await stage.worker()
    stage.fault_is_over()
    await stage.finished()
    worker.thaw()
    await stage.sessions_are_over(worker.pid)


async def frozen_after_commit(stage: Stage) -> None:
    """A zombie whose effect is there while Temporal knows nothing of it; before the commit point with a cancel."""
    worker = await stage.worker()
    async with stage.gate("commit") as gate:
        await stage.start()
        await gate.reached(by=worker.pid)
        worker.freeze()
    await stage.effect_is_there()
    if stage.target in (TARGETS["B"], TARGETS["P"]):
        assert await stage.cancel() == ("accepted" if stage.target == TARGETS["B"] else "recorded")
    await stage.worker()
    stage.fault_is_over()
    await stage.finished()
    worker.thaw()
    await stage.sessions_are_over(worker.pid)


async def deployed_anew(stage: Stage) -> None:
    """A new worker with other definitions takes over in the middle: the running saga keeps the one it began with."""
    old = await stage.worker()
    async with stage.gate("effect") as gate:
        await stage.start()
        await gate.reached(by=old.pid)
        text = (stage.folder / "transfer.saga.yaml").read_text(encoding="utf-8")
        before, _, after = text.partition("  - id: ship")
        shorter = before + "  - id: thank" + after.partition("  - id: thank")[2]
        shorter = shorter.replace("- {uses: bank.release,", "- {uses: bank.release_by_hand,", 1).replace(
            ', note: "${{ input.notes.release }}"', ""
        )
        (stage.folder / "transfer.saga.yaml").write_text(shorter, encoding="utf-8")
        await stage.worker()
        stopping = asyncio.create_task(asyncio.to_thread(old.stop))
        await asyncio.sleep(0.3)
    assert await stopping == 0, old.tail()
    stage.fault_is_over()


async def _truth(value: bool) -> bool:
    return value
