"""Faults of the relay, and of what it says to Kafka (cells 14 to 17).

Each begins with a saga that stands where its next effect is made and not committed: the fault hits its event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tests.faults.breakpoints import Gate
from tests.faults.cell_environment import Stage
from tests.faults.messaging import TRANSACTION, Channel, channel
from tests.helpers.kafka_proxy import END_TXN, PRODUCE, Act, Caught, Rule

PATIENCE = 90.0


@asynccontextmanager
async def standing(stage: Stage) -> AsyncIterator[Gate]:
    """The saga is where the target's effect is made and not committed; all events before it are published."""
    worker = await stage.worker()
    async with stage.gate("effect") as gate:
        await stage.start()
        await gate.reached(by=worker.pid)
        assert await channel(stage).published(stage), "the events before it"
        yield gate


async def caught(stage: Stage, rule: Rule) -> Caught:
    """The request that a rule was waiting for."""
    await stage.until(_asked(lambda: bool(rule.caught)), "the request", PATIENCE)
    return rule.caught[0]


async def stand_at_commit(stage: Stage, act: Act) -> Caught:
    """The target's event is in a transaction whose end is on the way: held, or done and its answer lost."""
    async with standing(stage) as gate:
        rule = channel(stage).catch(stage, END_TXN, act)
        await gate.open()
        return await caught(stage, rule)


async def killed_before_sending(stage: Stage) -> None:
    """P9: the row is committed, and nothing of it is sent."""
    shared = channel(stage)
    async with standing(stage) as gate:
        await shared.once(doing(shared.first.freeze))
        await gate.open()
        await stage.effect_is_there()
    before = await shared.written(stage)
    await shared.once(_killed(shared))
    assert before[0] == before[1], "something of it was sent"
    await _without_relay(stage)


async def killed_in_transaction(stage: Stage) -> None:
    """P10: the event is in an open transaction, whose end never reaches the broker."""
    shared = channel(stage)
    await stand_at_commit(stage, "hold")
    committed, there = await shared.written(stage)
    assert committed < there, "no transaction is open"
    await shared.once(_killed(shared))
    await _without_relay(stage)


async def killed_before_answer(stage: Stage) -> None:
    """P11: the transaction is committed, and its relay dies without having heard of it."""
    shared = channel(stage)
    end = await stand_at_commit(stage, "swallow")
    assert await asyncio.wait_for(end.answered(), PATIENCE) == 0
    await shared.once(_killed(shared))
    await _without_relay(stage)


async def killed_before_marking(stage: Stage) -> None:
    """P12: the transaction is committed, its relay knows, and dies before it marks the row."""
    shared = channel(stage)
    async with stage.gate("mark") as mark:
        async with standing(stage):
            pass
        await mark.reached()
        await shared.once(_killed(shared))
    await _without_relay(stage)


async def replaced_in_commit(stage: Stage) -> None:
    """A relay freezes while its commit is under way; another takes its place, and fences it.

    The commit arrives when it must not do anything any more, and the old one wakes up: it stands by, and is quiet.
    """
    shared = channel(stage)
    end = await stand_at_commit(stage, "hold")
    await shared.once(doing(shared.first.freeze))
    await shared.once(shared.relay)
    stage.fault_is_over()
    await stage.finished()
    assert await shared.published(stage, PATIENCE)
    end.deliver()
    assert await asyncio.wait_for(end.answered(), PATIENCE) != 0, "the late commit was taken"
    await shared.once(doing(shared.first.thaw))
    await shared.once(lambda: _stands_by(shared, stage))


async def frozen_past_its_transaction(stage: Stage) -> None:
    """The broker ends the transaction of a frozen relay by itself: whoever reads the topic waits for that, no longer.

    The relay wakes up with an identity that is worth nothing, and does its batch again with a new one.
    """
    shared = channel(stage)
    began = time.monotonic()
    await stand_at_commit(stage, "hold")
    await shared.once(doing(shared.first.freeze))
    settled = await shared.settled(stage)
    # On a busy machine the broker may have ended it while the other cells of the row were on their way here.
    assert not settled or time.monotonic() - began > TRANSACTION, "the transaction holds nothing back"
    await stage.until(lambda: shared.settled(stage), "the end of the transaction", PATIENCE)
    committed, there = await shared.written(stage)
    assert committed < there, "the transaction was committed"
    await stage.finished()  # it needs no relay
    stage.fault_is_over()
    await shared.once(doing(shared.first.thaw))


async def commit_late(stage: Stage) -> None:
    """A commit is on the way when the connection breaks. The client sends it again by itself, over another one, and
    goes on; the first copy arrives in the middle of the next transaction, which must not end by it.

    With the protocol that the client speaks the broker tells the two apart by the producer's epoch alone.
    """
    shared = channel(stage)
    end = await stand_at_commit(stage, "hold")
    rule = shared.catch(stage, PRODUCE, "set_aside", holding=shared.progress_topic(stage).encode())
    end.hang_up()
    progress = await caught(stage, rule)  # the next transaction is open, and lacks its last record
    end.deliver()
    code = await asyncio.wait_for(end.answered(), PATIENCE)
    progress.deliver()
    stage.fault_is_over()
    assert code != 0, "the late commit has ended a transaction that goes on"


async def _without_relay(stage: Stage) -> None:
    """The saga needs no relay; when it is over, another one begins."""
    await stage.finished()
    stage.fault_is_over()
    shared = channel(stage)
    await shared.once(shared.relay)


async def _stands_by(shared: Channel, stage: Stage) -> None:
    """The old relay has understood, and does not say so over and over."""
    log = shared.first.log
    cells = len(shared.stages)

    def said() -> int:
        text = log.read_text(errors="replace")
        return text.count("stands by") + text.count("fenced: ")

    await stage.until(_asked(lambda: said() >= cells), "that the old relay stands by", PATIENCE)
    await asyncio.sleep(2.0)
    assert said() <= 3 * cells, f"it goes round in circles:\n{shared.first.tail()}"


def _killed(shared: Channel) -> Callable[[], Awaitable[None]]:
    async def kill() -> None:
        await asyncio.to_thread(shared.first.kill)

    return kill


def doing(act: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    """Something that takes no time, as one of those that cells do together."""

    async def do() -> None:
        act()

    return do


def _asked(question: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return question()

    return ask
