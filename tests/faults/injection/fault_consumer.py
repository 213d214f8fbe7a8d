"""Faults of a consumer of the saga's events: killed, replaced, and given events out of order (cells 18 and 19)."""

from __future__ import annotations

import asyncio

from tests.faults.breakpoints import Target
from tests.faults.cell_environment import CellEnvironment
from tests.faults.injection.fault_relay import doing, stop_at_effect
from tests.faults.messaging import messaging
from tests.helpers.processes import TriggerProcess
from tests.helpers.waiting import until


async def killed_before_offset(env: CellEnvironment) -> None:
    """P13: the inbox row and the effect are committed, the offset is not: the message comes again, and is dropped."""
    shared = messaging(env)
    await _stop_at_note(env)
    await shared.once(lambda: asyncio.to_thread(shared.consumer.kill))
    await env.finished()
    env.fault_is_over()
    await shared.once(shared.start_consumer)
    await _worked_off(env)


async def replaced_before_offset(env: CellEnvironment) -> None:
    """Freeze a consumer: another one gets its partitions, and the frozen one resumes as a zombie."""
    shared = messaging(env)
    zombie = await _stop_at_note(env)
    await shared.once(shared.start_consumer)
    await env.finished()
    env.fault_is_over()
    await _worked_off(env)
    await shared.once(doing(zombie.thaw))
    await asyncio.sleep(2.0)  # for the zombie to do what it must not


async def _stop_at_note(env: CellEnvironment) -> TriggerProcess:
    """The target's event is noted, its offset is not committed, and the consumer does not move any more."""
    shared = messaging(env)
    await shared.once(shared.start_consumer)
    consumer = shared.consumer
    async with env.breakpoint_at("note") as note:
        async with stop_at_effect(env):
            pass
        await note.reached()
        await shared.once(doing(consumer.freeze))
    question = "select 1 from noted where step = %s and op = %s"
    await until(lambda: env.admin(question, env.target.step, env.target.op), "the note")
    assert not await shared.fully_consumed(env), "the offset is committed"
    return consumer


async def out_of_order(env: CellEnvironment) -> None:
    """A message that is overtaken by all that follow it: cancelled before it was made, when the saga compensates."""
    shared = messaging(env)
    late = Target(env.target.step, "do")
    await shared.divert(env, late)
    await shared.once(shared.start_consumer)
    await env.worker()
    await env.start()
    await env.finished()
    await shared.published(env)
    await _worked_off(env)
    env.fault_is_over()
    await shared.once(lambda: shared.start_consumer(late=True))
    await until(lambda: shared.fully_consumed(env, late=True), "the late message")


async def _worked_off(env: CellEnvironment) -> None:
    shared = messaging(env)
    await shared.published(env)
    await until(lambda: shared.fully_consumed(env), "that the consumer has taken everything")
