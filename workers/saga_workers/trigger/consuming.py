"""A consumer's message: inbox row, effect, events and reply in one transaction; the offset comes after it."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from saga_activities import inbox
from saga_activities.guard.address import MAX_SAGA_ID, MAX_STEP, Address
from saga_activities.guard.guard import Guard
from saga_activities.guard.sql_handle import Sql
from saga_activities.outbox import insert_event
from saga_activities.python_action import jsonable
from saga_workers.trigger.dead_letters import DeadLetters
from saga_workers.trigger.metrics import TriggerMetrics
from saga_workers.trigger.records import Record, Unreadable
from saga_workers.trigger.sagas_of_events import OUTCOME, REJECTED
from saga_workers.trigger.trying import Down, Poison, Told, tried
from sagas.consumers import Consumer
from sagas.message import Message
from sagas.outcomes import Outcome
from sagas.step import Event
from sagas.wire import Invocation

log = logging.getLogger("saga.trigger")

REPLY_TO, KEY, SAGA = "sagareplyto", "sagakey", "sagaid"
_OWN_WORDS = ("definition", "Timeout", "Infrastructure")
_SHORT = 10.0
"""Seconds for a transaction that only notes something."""


class Consuming:
    """Runs one consumer. The handle of a reader."""

    def __init__(
        self,
        consumer: Consumer,
        guard: Guard,
        group: str,
        dead_letters: DeadLetters,
        metrics: TriggerMetrics,
        stop: asyncio.Event,
        *,
        max_bytes: int,
        threads: ThreadPoolExecutor,
    ) -> None:
        self._consumer = consumer
        self._guard = guard
        self._group = group
        self._dead = dead_letters
        self._metrics = metrics
        self._stop = stop
        self._max_bytes = max_bytes
        self._threads = threads

    async def __call__(self, record: Record) -> None:
        """Done when the database knows what became of it, and the dead letters have it if they should."""
        dead: list[str] = []

        async def attempt(number: int) -> None:
            found = await self._attempt(record, number)
            if found is not None:
                dead.append(found)

        what = f"{self._group}: {record.place}"
        reason = await tried(what, attempt, stop=self._stop, max_attempts=self._consumer.max_attempts)
        if reason is not None:

            async def give_up(_: int) -> None:
                await self._give_up(record, reason)

            await tried(what, give_up, stop=self._stop, max_attempts=1_000_000)
            dead.append(reason)
        if dead:
            await self._dead.send(record, self._group, dead[0], self._stop)

    async def _attempt(self, record: Record, number: int) -> str | None:
        """One try. The reason, when the message had been given up before. Raises Poison and Down."""
        try:
            message = replace(record.message(), attempt=number)
        except Unreadable as error:
            raise Poison(str(error)) from None
        outcome = await self._guarded(functools.partial(self._effect, message, record), self._consumer.timeout)
        match outcome.kind:
            case "done" if isinstance(outcome.result, inbox.Found):
                self._metrics.consumed(self._consumer.name, record.topic, "duplicate")
                return (outcome.result.reason or "") if outcome.result.status == "DEAD" else None
            case "done":
                self._metrics.consumed(self._consumer.name, record.topic, "done")
            case "rejected":
                assert outcome.failure is not None
                await self._refuse(record, outcome.failure.message, outcome.failure.details)
                self._metrics.consumed(self._consumer.name, record.topic, "rejected")
            case _:
                await self._blame(outcome)
        return None

    async def _effect(self, message: Message, record: Record, sql: Sql) -> Any:
        found = await inbox.enter(sql, self._entry(record), "DONE")
        if found is not None:
            return found
        result = jsonable(await self._call(message, sql))
        for event in message.events:
            await self._emit(sql, event, record)
        await self._reply(sql, record, "done", result)
        return None

    async def _call(self, message: Message, sql: Sql) -> Any:
        loop = asyncio.get_running_loop()

        async def newer(entity: str, version: int) -> bool:
            return await inbox.newer(sql, self._consumer.name, entity, version)

        if self._consumer.asynchronous:
            return await self._consumer.function(replace(message, _sql=sql, _newer=newer, events=message.events))

        def newer_in_thread(entity: str, version: int) -> bool:
            return asyncio.run_coroutine_threadsafe(newer(entity, version), loop).result()

        given = replace(message, _sql=sql.sync(), _newer=newer_in_thread, events=message.events)
        call = functools.partial(contextvars.copy_context().run, self._consumer.function, given)
        return await loop.run_in_executor(self._threads, call)

    async def _refuse(self, record: Record, reason: str, details: Mapping[str, Any]) -> None:
        """A business no: nothing of the effect is there, and the inbox says so for every later delivery."""
        log.info("%s: %s is rejected: %s", self._group, record.place, reason)
        await self._note(record, "REJECTED", reason, details)

    async def _give_up(self, record: Record, reason: str) -> None:
        """From here on the message can have no effect; whoever waits for a reply is told."""
        await self._note(record, "DEAD", reason, {"dead_letter": record.place})

    async def _note(self, record: Record, status: inbox.Status, reason: str, details: Mapping[str, Any]) -> None:
        async def body(sql: Sql) -> None:
            if await inbox.enter(sql, self._entry(record), status, reason) is None:
                await self._reply(sql, record, REJECTED, {"reason": reason, "details": jsonable(dict(details))})

        outcome = await self._guarded(body, _SHORT)
        if outcome.kind != "done":
            await self._blame(outcome)

    async def _reply(self, sql: Sql, record: Record, outcome: str, value: Any) -> None:
        headers = record.headers
        topic = headers.get(REPLY_TO)
        if not topic:
            return
        told = {name: headers[name] for name in (KEY, SAGA) if name in headers}
        key = headers.get(SAGA) or (None if record.key is None else record.key.decode("utf-8", "replace"))
        await self._emit(sql, Event(topic, key, value, {**told, OUTCOME: outcome}), record)

    async def _emit(self, sql: Sql, event: Event, record: Record) -> None:
        name = self._consumer.name
        saga_id = record.headers.get(SAGA, "")
        origin = Invocation(
            action=name,
            arguments={},
            key=record.headers.get(KEY, record.id),
            saga_id=saga_id if len(saga_id) <= MAX_SAGA_ID else "",
            step=f"consumer/{name}"[:MAX_STEP],
            op="do",
            generation=1,
        )
        await insert_event(sql, event, origin, max_bytes=self._max_bytes)

    async def _guarded(self, body: Any, timeout: float) -> Outcome:
        """A transaction of the database with the limits that guarded steps have; it leaves no row in the guard."""
        now = time.time()
        address = Address("saga-inbox", "message")
        return await self._guard.ask(address, body, scheduled_at=now, deadline=now + timeout)

    async def _blame(self, outcome: Outcome) -> None:
        """Raise what an attempt without an end means: the database is in trouble, or the message is."""
        failure = outcome.failure
        assert failure is not None
        if outcome.infrastructure or outcome.kind == "unknown":
            raise Down(f"{self._consumer.connection}: {failure.message}")
        if failure.type == "Timeout" and not await self._answers():
            raise Down(f"{self._consumer.connection} does not answer")
        # Where the type is the engine's own word, the message says all.
        said = failure.message if failure.type in _OWN_WORDS else f"{failure.type}: {failure.message}"
        raise (Failed if outcome.retryable else Poison)(said)

    async def _answers(self) -> bool:
        async def body(sql: Sql) -> None:
            await sql.execute("SELECT 1")

        return (await self._guarded(body, 5.0)).kind == "done"

    def _entry(self, record: Record) -> inbox.Entry:
        return inbox.Entry(self._consumer.name, record.id, record.topic, record.partition, record.offset)


class Failed(Told):
    """An attempt failed, and was rolled back."""
