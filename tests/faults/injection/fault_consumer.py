"""Faults of a consumer of the saga's events: killed, replaced, and told things in the wrong order (cells 18 and 19)."""

from __future__ import annotations

import asyncio

from tests.faults.breakpoints import Target
from tests.faults.cell_environment import Stage
from tests.faults.injection.fault_relay import doing, standing
from tests.faults.messaging import channel
from tests.helpers.processes import TriggerProcess


async def killed_before_offset(stage: Stage) -> None:
    """P13: the inbox row and the effect are committed, the offset is not: the message comes again, and is dropped."""
    shared = channel(stage)
    await _stand_at_note(stage)
    await shared.once(lambda: asyncio.to_thread(shared.consumer.kill))
    await stage.finished()
    stage.fault_is_over()
    await shared.once(shared.take_notes)
    await _worked_off(stage)


async def replaced_before_offset(stage: Stage) -> None:
    """The same with a consumer that is frozen: another one gets its partitions, and it wakes up as a zombie."""
    shared = channel(stage)
    zombie = await _stand_at_note(stage)
    await shared.once(shared.take_notes)
    await stage.finished()
    stage.fault_is_over()
    await _worked_off(stage)
    await shared.once(doing(zombie.thaw))
    await asyncio.sleep(2.0)  # for the zombie to do what it must not


async def _stand_at_note(stage: Stage) -> TriggerProcess:
    """The target's event is noted, its offset is not committed, and the consumer does not move any more."""
    shared = channel(stage)
    await shared.once(shared.take_notes)
    consumer = shared.consumer
    async with stage.gate("note") as note:
        async with standing(stage):
            pass
        await note.reached()
        await shared.once(doing(consumer.freeze))
    question = "select 1 from noted where step = %s and op = %s"
    await stage.until(lambda: stage.admin(question, stage.target.step, stage.target.op), "the note")
    assert not await shared.worked_off(stage), "the offset is committed"
    return consumer


async def out_of_order(stage: Stage) -> None:
    """A message that is overtaken by all that follow it: cancelled before it was made, when the saga compensates."""
    shared = channel(stage)
    late = Target(stage.target.step, "do")
    await shared.divert(stage, late)
    await shared.once(shared.take_notes)
    await stage.worker()
    await stage.start()
    await stage.finished()
    await shared.published(stage)
    await _worked_off(stage)
    stage.fault_is_over()
    await shared.once(lambda: shared.take_notes(late=True))
    await stage.until(lambda: shared.worked_off(stage, late=True), "the late message", 90.0)


async def _worked_off(stage: Stage) -> None:
    shared = channel(stage)
    await shared.published(stage)
    await stage.until(lambda: shared.worked_off(stage), "that the consumer has taken everything", 90.0)
