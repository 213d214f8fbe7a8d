"""Rows other than the guard's that two transactions insert concurrently: requests, inboxes, outputs of Spark steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.sql_session import SqlSession
from saga_activities.messaging import inbox, kafka_request
from saga_activities.messaging.kafka_request import WaitingAttempt
from saga_spark import output_records
from saga_spark.manifest import Target
from saga_spark.staging.staging_attempt import transaction
from sagas.protocol.outcomes import Outcome
from tests.integration.guard.conftest import GuardDatabase, clock

HERE = EntryKey("other-rows", "step")


async def one_after_the_other(
    guard_database: GuardDatabase, body: Callable[[SqlSession], Awaitable[Any]]
) -> tuple[Outcome, Outcome]:
    """The outcomes of two transactions, of which the second begins while the first is open."""
    written, go_on = asyncio.Event(), asyncio.Event()

    async def held(sql: SqlSession) -> Any:
        result = await body(sql)
        written.set()
        await go_on.wait()
        return result

    first = asyncio.create_task(guard_database.guard.run_probe(HERE, held, **clock()))
    begun = asyncio.create_task(written.wait())
    await asyncio.wait({first, begun}, return_when=asyncio.FIRST_COMPLETED)
    assert not first.done(), first
    second = asyncio.create_task(guard_database.guard.run_probe(HERE, body, **clock()))
    done, _ = await asyncio.wait({second}, timeout=0.3)
    assert not done, "the second must wait"
    go_on.set()
    outcome = await second
    for _ in range(5):
        if not outcome.infrastructure:
            break
        outcome = await guard_database.guard.run_probe(HERE, body, **clock())
    return await first, outcome


async def receive_twice(guard_database: GuardDatabase) -> None:
    row = inbox.InboxRow("shop", str(uuid4()), "orders", "id", 0, 7, "digest")
    first, second = await one_after_the_other(guard_database, lambda sql: inbox.record(sql, row, "DONE"))
    assert (first.kind, first.result) == ("done", None)
    assert (second.kind, second.result) == ("done", inbox.Duplicate("DONE", None)), second


async def ask_twice(guard_database: GuardDatabase) -> None:
    key = str(uuid4())
    row = {"step_key": key, "saga_id": "s", "step": "a", "generation": 1, "op": "do", "created_at": 0.0}
    row |= {"reply_topic": None, "reply_token": None}

    async def ask(sql: SqlSession) -> bool:
        request = await kafka_request.lock_request(sql, row)
        await kafka_request.register_waiter(sql, key, replace(request, waiter=WaitingAttempt(b"token", 1)))
        return request.is_new

    first, second = await one_after_the_other(guard_database, ask)
    assert (first.kind, first.result) == ("done", True)
    assert (second.kind, second.result) == ("done", False), second


async def test_a_message_received_twice_concurrently(guard_database: GuardDatabase) -> None:
    await receive_twice(guard_database)


async def test_a_message_received_twice_at_every_isolation_level(levels: GuardDatabase) -> None:
    await receive_twice(levels)


async def test_a_command_requested_twice_concurrently(guard_database: GuardDatabase) -> None:
    await ask_twice(guard_database)


async def test_a_command_requested_twice_at_every_isolation_level(levels: GuardDatabase) -> None:
    await ask_twice(levels)


async def test_two_attempts_take_over_an_output_concurrently(guard_database: GuardDatabase) -> None:
    await output_records.create_table(guard_database.engine)
    target = Target(f"saga-{uuid4()}", "day", 1)
    taken, go_on = asyncio.Event(), asyncio.Event()

    async def take_over(wait: bool) -> int:
        async with transaction(guard_database.engine) as connection:
            row = await output_records.take_over(connection, target, saga="day", place="facts", spec={}, together=False)
            taken.set()
            if wait:
                await go_on.wait()
        return row.epoch

    first = asyncio.create_task(take_over(wait=True))
    await taken.wait()
    others = [asyncio.create_task(take_over(wait=False)) for _ in range(3)]
    done, _ = await asyncio.wait(others, timeout=0.3)
    assert not done, "the others must wait"
    go_on.set()
    assert await first == 1
    assert sorted([await other for other in others]) == [2, 3, 4]
