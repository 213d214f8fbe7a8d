"""Faults of Kafka's broker and of the wire to it (cell 13): steps go on, their events wait, and their order is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.faults.cell_environment import CellEnvironment
from tests.faults.injection.fault_relay import stop_at_effect
from tests.faults.messaging import messaging

Fault = Callable[[], Awaitable[object]]


async def broker_killed(env: CellEnvironment) -> None:
    """The broker is killed and restarted on its data."""
    broker = messaging(env).broker
    await _without_broker(env, lambda: asyncio.to_thread(broker.kill), lambda: asyncio.to_thread(broker.start, 90.0))


async def broker_frozen(env: CellEnvironment) -> None:
    """The broker is frozen for a while and then continues."""
    broker = messaging(env).broker
    await _without_broker(env, lambda: asyncio.to_thread(broker.freeze), lambda: asyncio.to_thread(broker.thaw))


async def broker_cut(env: CellEnvironment) -> None:
    """The wire to it is cut for the relay alone."""
    shared = messaging(env)
    proxy = shared.proxy
    assert proxy is not None, "this row has no proxy"

    async def cut() -> None:
        proxy.cut(shared.prefix)

    async def restore() -> None:
        proxy.restore(shared.prefix)

    await _without_broker(env, cut, restore)


async def _without_broker(env: CellEnvironment, fault: Fault, remove_faults: Fault) -> None:
    shared = messaging(env)
    async with stop_at_effect(env):
        await shared.once(fault)
    await env.finished()
    waiting = await env.admin("select count(*) from saga_outbox where step = %s and status = 'NEW'", env.target.step)
    assert waiting[0][0], "the event of the target does not wait"
    await shared.once(remove_faults)
    env.fault_is_over()
