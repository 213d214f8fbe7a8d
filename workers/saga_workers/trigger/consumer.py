"""Runs a consumer: inbox row, effect, events and reply in one database transaction; the offset is committed later."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

from saga_activities.bodies.python_action import jsonable, ordinary_errors
from saga_activities.concurrency import wait_first
from saga_activities.conflict_retries import CONFLICT_INTERVALS
from saga_activities.guard.action_sql import ActionSql, until_return
from saga_activities.guard.entry_key import MAX_ENTRY, EntryKey, usable_saga_id
from saga_activities.guard.guard import Guard
from saga_activities.guard.sql_session import SqlSession
from saga_activities.kafka.record_codec import REPLY_TO_HEADER, REPLY_TOKEN_HEADER, SAGA_ID_HEADER, STEP_KEY_HEADER
from saga_activities.messaging import inbox
from saga_activities.messaging.outbox import insert_events
from saga_activities.own_frames import logging_own_frames
from saga_workers.runtime.logs import fields
from saga_workers.trigger.consumed_record import OUTCOME_HEADER, REJECTED_OUTCOME, ConsumedRecord
from saga_workers.trigger.dead_letters import DeadLetters
from saga_workers.trigger.record_checks import read_message
from saga_workers.trigger.retry import (
    USUAL_ATTEMPTS,
    AttemptFailed,
    DependencyUnavailable,
    PoisonMessage,
    ProcessStopping,
    retry_until_done,
)
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from saga_workers.trigger.watchdog import MARGIN, PATIENCE, Watchdog
from sagas.actions.consumers import Consumer, Message
from sagas.actions.events import Event, EventLog
from sagas.builtins.messaging import TOPIC_NAME
from sagas.errors import UsageError
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from sagas.text.printable import printable
from sagas.text.shortening import shorten_middle

log = logging.getLogger("saga.trigger")

_ECHOED_HEADERS = (STEP_KEY_HEADER, SAGA_ID_HEADER, REPLY_TOKEN_HEADER)
"""Headers of a message that its reply returns."""

_ENGINE_ERROR_TYPES = ("definition", "Timeout", "Infrastructure")
_MAX_REASON = 10_000
RECORD_TIMEOUT = 10.0
"""Seconds for a transaction that only records an outcome."""
_RECORD_ATTEMPTS = 5
"""Attempts to record a message that is given up, unless a dependency is unavailable."""


Handle = Callable[[SqlSession], Awaitable[Any]]
"""The handler of a message, in the transaction of a session."""


class ConsumerFailed(AttemptFailed):
    """The attempt failed and was rolled back."""


class ConsumerHandler:
    """Runs one consumer; the handler of a TopicReader."""

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
        prefix: str = "saga",
        watchdog: Watchdog | None = None,
    ) -> None:
        """``prefix``: that of ``[kafka]``, with which the engine's own topics begin."""
        self._watchdog = watchdog or Watchdog()
        self._consumer = consumer
        self._guard = guard
        self._group = group
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._stop = stop
        self._max_bytes = max_bytes
        self._threads = threads
        self._prefix = prefix

    async def __call__(self, record: ConsumedRecord) -> None:
        """Handle a record: until the database has its outcome or, if it is given up, Kafka has its dead letter."""
        given_up: list[str] = []

        async def attempt(number: int) -> None:
            outcome = await self._attempt(record, number)
            if outcome is not None:
                given_up.append(outcome)

        about = fields(group=self._group, record=record.position)
        limit = self._consumer.max_attempts or USUAL_ATTEMPTS
        reason = await retry_until_done(
            attempt, about=about, stop=self._stop, max_attempts=limit, delivery=record.delivery
        )
        if reason is not None and await self._give_up(record, reason):
            await self._dead_letters.send(record, self._group, reason, self._stop)
        for given_up_reason in given_up:
            await self._dead_letters.send(record, self._group, given_up_reason, self._stop, any_prefix=True)

    async def _attempt(self, record: ConsumedRecord, number: int) -> str | None:
        """One attempt; returns the reason if the message had been given up before, or has the id of another one.

        Raises PoisonMessage, DependencyUnavailable, ConsumerFailed.
        """
        self._reply_topic(record)

        async def once(handle: Handle) -> Outcome:
            return await self._run_transaction(
                functools.partial(self._run_effect, record, handle), self._consumer.timeout
            )

        outcome = await self._handled(record, number, once)
        match outcome.kind:
            case "done" if isinstance(outcome.result, inbox.Duplicate):
                if outcome.result.other is not None:
                    return _used_id_message(record, outcome.result)
                self._metrics.consumed(self._consumer.name, record.topic, "duplicate")
                return (outcome.result.reason or "") if outcome.result.status == "DEAD" else None
            case "done":
                self._metrics.consumed(self._consumer.name, record.topic, "done")
            case "rejected":
                assert outcome.failure is not None
                await self._record_rejection(record, outcome.failure.message, outcome.failure.details)
                self._metrics.consumed(self._consumer.name, record.topic, "rejected")
            case _:
                await self._raise_failure(outcome)
        return None

    async def _handled(
        self, record: ConsumedRecord, number: int, run: Callable[[Handle], Awaitable[Outcome]]
    ) -> Outcome:
        """The outcome of ``run``, which calls the handler in a transaction, once its threads have ended.

        Raises PoisonMessage, ProcessStopping.
        """
        message = replace(await read_message(record), attempt=number)
        thread_futures: list[asyncio.Future[Any]] = []
        outcome = await run(functools.partial(self._run_handler, message, record, thread_futures))
        for thread_future in thread_futures:
            await self._thread_ended(thread_future, record)
        return outcome

    async def _run_effect(self, record: ConsumedRecord, handle: Handle, sql: SqlSession) -> Any:
        recorded = await inbox.record(sql, await self._inbox_row(record), "DONE")
        if recorded is not None:
            if recorded.other is not None:
                value = {"reason": _used_id_message(record, recorded), "details": _dead_letter_details(record)}
                await self._reply(sql, record, REJECTED_OUTCOME, value)
            return recorded
        await self._reply(sql, record, "done", await handle(sql))
        return None

    async def _run_handler(
        self, message: Message, record: ConsumedRecord, thread_futures: list[asyncio.Future[Any]], sql: SqlSession
    ) -> Any:
        """The result of the handler, whose events are in the outbox."""
        message = replace(
            message, events=EventLog(sql.forbid_commit)
        )  # an attempt may run this twice, on two connections
        try:
            about = fields(group=self._group, record=record.position)
            with logging_own_frames(log, self._consumer.function, self._consumer.name, message.attempt, extra=about):
                result = jsonable(await self._call_handler(message, thread_futures, sql))
            sql.check_statements()
        except UsageError as error:
            raise UsageError(f"{self._consumer.place}: {error}") from error
        for event in message.events:
            await self._emit(sql, event, record)
        return result

    async def _call_handler(self, message: Message, thread_futures: list[asyncio.Future[Any]], sql: SqlSession) -> Any:
        """The result of the handler. The thread of a plain `def` is added to ``thread_futures``."""
        loop = asyncio.get_running_loop()
        handle = ActionSql(sql, "message")

        def newer(entity: str, version: int) -> Coroutine[Any, Any, bool]:
            return handle.call("newer", inbox.is_newer, sql, self._consumer.name, entity, version)

        def newer_in_thread(entity: str, version: int) -> bool:
            return asyncio.run_coroutine_threadsafe(newer(entity, version), loop).result()

        with until_return(handle, [message.events]), ordinary_errors():
            if self._consumer.asynchronous:
                return await self._consumer.function(replace(message, _sql=handle, _newer=newer))
            given = replace(message, _sql=handle.sync(), _newer=newer_in_thread)
            work = functools.partial(ordinary_errors()(self._consumer.function), given)
            call = functools.partial(contextvars.copy_context().run, work)
            thread_futures.append(loop.run_in_executor(self._threads, call))
            return await asyncio.shield(thread_futures[-1])

    async def _thread_ended(self, thread_future: asyncio.Future[Any], record: ConsumedRecord) -> None:
        """Wait until the thread of a handler has ended, which a timeout cannot interrupt: otherwise two attempts would
        run at once, and a few messages would take all threads. Raises ProcessStopping.
        """
        if not thread_future.done():
            about = fields(group=self._group, record=record.position)
            log.warning("handler still runs after its timeout, its message waits until it has ended", extra=about)
            patience = MARGIN if record.delivery.alone else (PATIENCE - 1) * self._consumer.timeout
            with self._watchdog.thread(self._group, record.position, patience):
                await wait_first(asyncio.wait({thread_future}), self._stop.wait())
            if not thread_future.done():
                raise ProcessStopping()
        thread_future.exception()  # it is in the outcome; or the transaction was over, and it matters to nobody

    async def _record_rejection(self, record: ConsumedRecord, reason: str, details: Mapping[str, Any]) -> None:
        """Record a rejection: the effect is rolled back, and the inbox row answers every later delivery."""
        log.info("message rejected: %s", printable(reason), extra=fields(group=self._group, record=record.position))
        await self._record_outcome(record, "REJECTED", reason, details)

    async def _give_up(self, record: ConsumedRecord, reason: str) -> bool:
        """Record that the message is given up: it can have no effect from now on, and a requester gets a reply.

        False if it has had its effect: its process ended only afterwards. If the reply cannot be written, it is left
        out: no message may block those behind it.
        """
        about, details = fields(group=self._group, record=record.position), _dead_letter_details(record)
        recorded: list[inbox.Duplicate | None] = []
        for reply in (True, False):

            async def record_dead(_: int, reply: bool = reply) -> None:
                recorded.append(await self._record_outcome(record, "DEAD", reason, details, reply=reply))

            why = await retry_until_done(record_dead, about=about, stop=self._stop, max_attempts=_RECORD_ATTEMPTS)
            if why is None:
                return recorded[-1] is None or recorded[-1].status == "DEAD" or recorded[-1].other is not None
            log.error("dead letter not recorded %s: %s", "with a reply" if reply else "in the inbox", why, extra=about)
        return True

    async def _record_outcome(
        self,
        record: ConsumedRecord,
        status: inbox.InboxStatus,
        reason: str,
        details: Mapping[str, Any],
        *,
        reply: bool = True,
    ) -> inbox.Duplicate | None:
        """Record an outcome; returns the one that the inbox has already."""
        reason = printable(reason[:_MAX_REASON])
        row = await self._inbox_row(record)

        async def body(sql: SqlSession) -> inbox.Duplicate | None:
            recorded = await inbox.record(sql, row, status, reason)
            if (recorded is None or recorded.other is not None) and reply:
                await self._reply(sql, record, REJECTED_OUTCOME, {"reason": reason, "details": dict(details)})
            return recorded

        outcome = await self._run_transaction(body, RECORD_TIMEOUT)
        if outcome.kind != "done":
            await self._raise_failure(outcome)
        return outcome.result

    async def _reply(self, sql: SqlSession, record: ConsumedRecord, outcome: str, value: Any) -> None:
        headers, topic = record.headers, self._reply_topic(record)
        if topic is None:
            return
        forwarded = {name: text for name in _ECHOED_HEADERS if (text := headers.get(name)) is not None}
        key = headers.get(SAGA_ID_HEADER) or (None if record.key is None else record.key.decode("utf-8", "replace"))
        key = None if key is None else key.replace("\0", "")  # PostgreSQL's text cannot contain it
        await self._emit(sql, Event(topic, key, value, {**forwarded, OUTCOME_HEADER: outcome}), record)

    def _reply_topic(self, record: ConsumedRecord) -> str | None:
        """The topic for the reply, which the message names; None if it requests none.

        Raises PoisonMessage for a topic of the engine: a sender of messages must not steer a relay with it.
        """
        topic = record.headers.get(REPLY_TO_HEADER)
        if not topic:
            return None
        internal = topic == f"{self._prefix}-spark" or topic.startswith(f"{self._prefix}-relay-")
        if internal or not re.fullmatch(TOPIC_NAME, topic):
            raise PoisonMessage(f"the header {REPLY_TO_HEADER} is {topic[:60]!r}, which is not a topic for replies")
        return topic

    async def _emit(self, sql: SqlSession, event: Event, record: ConsumedRecord) -> None:
        name = self._consumer.name
        origin = Invocation(
            action=name,
            arguments={},
            key=record.headers.get(STEP_KEY_HEADER) or record.id,
            saga_id=usable_saga_id(record.headers.get(SAGA_ID_HEADER)),
            entry=f"consumer/{name}"[:MAX_ENTRY],
            op="do",
            generation=1,
        )
        await insert_events(sql, [event], origin, max_bytes=self._max_bytes)

    async def _run_transaction(self, body: Any, timeout: float) -> Outcome:
        """Run a transaction with the limits of a guarded step, but without a guard row."""
        now = time.time()
        entry_key = EntryKey("saga-inbox", "message")
        return await self._guard.run_probe(entry_key, body, scheduled_at=now, deadline=now + timeout)

    async def _raise_failure(self, outcome: Outcome) -> None:
        """Raise the exception for a failed attempt, which is the fault of the database or of the message."""
        failure = outcome.failure
        assert failure is not None
        if outcome.infrastructure or outcome.kind == "unknown":
            raise DependencyUnavailable(f"{self._consumer.connection}: {failure.message}")
        if failure.type == "Timeout" and not await self._database_answers():
            raise DependencyUnavailable(f"the database of the connection {self._consumer.connection} does not answer")
        # For the engine's own error types the message is complete without the type.
        text = failure.message if failure.type in _ENGINE_ERROR_TYPES else f"{failure.type}: {failure.message}"
        if not outcome.retryable:
            raise PoisonMessage(text)
        own_limit = self._consumer.max_attempts is not None
        raise ConsumerFailed(text, CONFLICT_INTERVALS if outcome.conflict and not own_limit else None)

    async def _database_answers(self) -> bool:
        async def body(sql: SqlSession) -> None:
            await sql.execute("SELECT 1")

        return (await self._run_transaction(body, 5.0)).kind == "done"

    async def _inbox_row(self, record: ConsumedRecord) -> inbox.InboxRow:
        if not record.was_read:  # it is given up before that
            with suppress(PoisonMessage):
                await read_message(record)
        name, place = self._consumer.name, (record.topic, record.topic_id, record.partition, record.offset)
        return inbox.InboxRow(name, record.id, *place, record.digest)


def _dead_letter_details(record: ConsumedRecord) -> Mapping[str, Any]:
    return {"dead_letter": record.position}


def _used_id_message(record: ConsumedRecord, recorded: inbox.Duplicate) -> str:
    difference = "has another key or value"
    if recorded.status == "DEAD":
        difference = f"is a dead letter ({shorten_middle(recorded.reason or '', 300)})"
    return (
        f"its id {record.id} is that of {recorded.other}, which {difference}, so {record.position} has no effect: "
        "send it with an id of its own"
    )
