"""Faults of Kafka's broker and of the wire to it (cell 13): steps go on, their events wait, and their order is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.faults.cell_environment import Stage
from tests.faults.injection.fault_relay import standing
from tests.faults.messaging import channel

Fault = Callable[[], Awaitable[object]]


async def broker_killed(stage: Stage) -> None:
    """It dies, and comes back on its data."""
    broker = channel(stage).broker
    await _without_broker(stage, lambda: asyncio.to_thread(broker.kill), lambda: asyncio.to_thread(broker.start, 90.0))


async def broker_frozen(stage: Stage) -> None:
    """It answers nobody for a while, and goes on where it was."""
    broker = channel(stage).broker
    await _without_broker(stage, lambda: asyncio.to_thread(broker.freeze), lambda: asyncio.to_thread(broker.thaw))


async def broker_cut(stage: Stage) -> None:
    """The wire to it is cut for the relay alone."""
    shared = channel(stage)
    proxy = shared.proxy
    assert proxy is not None, "this row has no proxy"

    async def cut() -> None:
        proxy.cut(shared.prefix)

    async def mend() -> None:
        proxy.mend(shared.prefix)

    await _without_broker(stage, cut, mend)


async def _without_broker(stage: Stage, fault: Fault, heal: Fault) -> None:
    shared = channel(stage)
    async with standing(stage):
        await shared.once(fault)
    await stage.finished()
    waiting = await stage.admin(
        "select count(*) from saga_outbox where step = %s and status = 'NEW'", stage.target.step
    )
    assert waiting[0][0], "the event of the target does not wait"
    await shared.once(heal)
    stage.fault_is_over()
