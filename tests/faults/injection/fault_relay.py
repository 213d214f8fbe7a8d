"""Faults of the relay and of its connection to Kafka (cells 14 to 17).

Each starts with a saga stopped before its next effect commits: the fault hits its event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tests.faults.breakpoints import Breakpoint
from tests.faults.cell_environment import CellEnvironment
from tests.faults.messaging import TRANSACTION, Messaging, messaging
from tests.helpers.kafka_proxy import END_TXN, PRODUCE, Act, Caught, Rule
from tests.helpers.waiting import LIMIT, until


@asynccontextmanager
async def stop_at_effect(env: CellEnvironment) -> AsyncIterator[Breakpoint]:
    """The saga is where the target's effect is made and not committed; all events before it are published."""
    worker = await env.worker()
    async with env.breakpoint_at("effect") as stop:
        await env.start()
        await stop.reached(by=worker.pid)
        assert await messaging(env).published(env), "the events before it"
        yield stop


async def caught(env: CellEnvironment, rule: Rule) -> Caught:
    """The request that a rule was waiting for."""
    await until(as_async(lambda: bool(rule.caught)), "the request")
    return rule.caught[0]


async def stop_at_commit(env: CellEnvironment, act: Act) -> Caught:
    """The target's event is in a transaction whose end is on the way: held, or done and its answer lost."""
    async with stop_at_effect(env) as stop:
        rule = messaging(env).catch(env, END_TXN, act)
        await stop.open()
        return await caught(env, rule)


async def killed_before_sending(env: CellEnvironment) -> None:
    """P9: the row is committed, and nothing of it is sent."""
    shared = messaging(env)
    async with stop_at_effect(env) as stop:
        await shared.once(doing(shared.first.freeze))
        await stop.open()
        await env.effect_is_there()
    before = await shared.written(env)
    await shared.once(_killed(shared))
    assert before[0] == before[1], "something of it was sent"
    await _without_relay(env)


async def killed_in_transaction(env: CellEnvironment) -> None:
    """P10: the event is in an open transaction, whose end never reaches the broker."""
    shared = messaging(env)
    await stop_at_commit(env, "hold")
    committed, there = await shared.written(env)
    assert committed < there, "no transaction is open"
    await shared.once(_killed(shared))
    await _without_relay(env)


async def killed_before_answer(env: CellEnvironment) -> None:
    """P11: the transaction is committed, and its relay is killed before it receives the response."""
    shared = messaging(env)
    end = await stop_at_commit(env, "swallow")
    assert await asyncio.wait_for(end.answered(), LIMIT) == 0
    await shared.once(_killed(shared))
    await _without_relay(env)


async def killed_before_recording(env: CellEnvironment) -> None:
    """P12: the transaction is committed, and its relay is killed before it has recorded that in the database."""
    shared = messaging(env)
    async with env.breakpoint_at("record") as record:
        async with stop_at_effect(env):
            pass
        await record.reached()
        await shared.once(_killed(shared))
    await _without_relay(env)


async def replaced_in_commit(env: CellEnvironment) -> None:
    """A relay freezes during its commit; another takes over and fences it.

    The commit arrives after the fencing and must have no effect; the old relay resumes and goes on standby.
    """
    shared = messaging(env)
    end = await stop_at_commit(env, "hold")
    await shared.once(doing(shared.first.freeze))
    await shared.once(shared.relay)
    env.fault_is_over()
    await env.finished()
    assert await shared.published(env, LIMIT)
    end.deliver()
    assert await asyncio.wait_for(end.answered(), LIMIT) != 0, "the late commit was taken"
    await shared.once(doing(shared.first.thaw))
    await shared.once(lambda: _is_on_standby(shared, env))


async def frozen_past_its_transaction(env: CellEnvironment) -> None:
    """The broker aborts the transaction of a frozen relay at its timeout: readers of the topic wait no longer.

    The relay resumes with a fenced producer and repeats its batch with a new one.
    """
    shared = messaging(env)
    began = time.monotonic()
    await stop_at_commit(env, "hold")
    await shared.once(doing(shared.first.freeze))
    settled = await shared.settled(env)
    # On a busy machine the broker may have ended it while the other cells of the row were on their way here.
    assert not settled or time.monotonic() - began > TRANSACTION, "the transaction holds nothing back"
    await until(lambda: shared.settled(env), "the end of the transaction")
    committed, there = await shared.written(env)
    assert committed < there, "the transaction was committed"
    await env.finished()  # it needs no relay
    env.fault_is_over()
    await shared.once(doing(shared.first.thaw))


async def commit_late(env: CellEnvironment) -> None:
    """A commit is in flight when the connection breaks. The client resends it over another connection and continues;
    the first copy arrives during the next transaction, which it must not end.

    In the client's protocol version the broker distinguishes the two by the producer epoch alone.
    """
    shared = messaging(env)
    end = await stop_at_commit(env, "hold")
    rule = shared.catch(env, PRODUCE, "set_aside", holding=shared.progress_topic(env).encode())
    end.disconnect()
    progress = await caught(env, rule)  # the next transaction is open, and lacks its last record
    end.deliver()
    code = await asyncio.wait_for(end.answered(), LIMIT)
    progress.deliver()
    env.fault_is_over()
    assert code != 0, "the late commit has ended a transaction that goes on"


async def _without_relay(env: CellEnvironment) -> None:
    """The saga needs no relay; when it is over, another one begins."""
    await env.finished()
    env.fault_is_over()
    shared = messaging(env)
    await shared.once(shared.relay)


async def _is_on_standby(shared: Messaging, env: CellEnvironment) -> None:
    """The old relay has understood, and does not say so over and over."""
    log = shared.first.log
    cells = len(shared.environments)

    def output() -> int:
        text = log.read_text(errors="replace")
        return text.count("shard on standby") + text.count("producer fenced: ")

    await until(as_async(lambda: output() >= cells), "that the old relay stands by")
    await asyncio.sleep(2.0)
    assert output() <= 3 * cells, f"it goes round in circles:\n{shared.first.tail()}"


def _killed(shared: Messaging) -> Callable[[], Awaitable[None]]:
    async def kill() -> None:
        await asyncio.to_thread(shared.first.kill)

    return kill


def doing(act: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    """Something that takes no time, as one of those that cells do together."""

    async def do() -> None:
        act()

    return do


def as_async(question: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return question()

    return ask
