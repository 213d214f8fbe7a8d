"""Faults of the servers and of the wires to them (cells 5, 9, 11, 12)."""

from __future__ import annotations

import asyncio

from tests.faults.stage import Stage


async def temporal_killed(stage: Stage) -> None:
    """The Temporal server dies while an attempt runs, and comes back on its store."""
    worker = await stage.worker()
    async with stage.gate("effect") as gate:
        await stage.start()
        await gate.reached(by=worker.pid)
        await asyncio.to_thread(stage.temporal.kill)
        await gate.open()
        await stage.effect_is_there()  # the effect needs no Temporal
    await asyncio.to_thread(stage.temporal.start)
    stage.fault_is_over()
