"""Consumes the reply topics: records each reply in the row of its request, wakes the saga, then commits the offset.

After a crash in between, the same replies are read again. Recording is one conditional update, so the first reply
counts; waking an attempt that is over has no effect. Replies that cannot be read, or do not come from the recipient of
the command, go to the dead letters.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from saga_activities.concurrency import Backoff
from saga_activities.connections import DatabaseConnections
from saga_activities.guard import database_errors
from saga_activities.guard.tables import outbox_home_table
from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError
from saga_activities.kafka.config import consumer_config
from saga_activities.kafka.errors import classify_kafka_error
from saga_activities.kafka.record_codec import MalformedRecord, decode_headers, raw_headers
from saga_activities.messaging import kafka_request
from saga_activities.messaging.kafka_request import (
    MalformedReply,
    RefusedReply,
    Reply,
    RequestRow,
    decode_reply,
    outcome_of_reply,
)
from saga_activities.temporal_activity import to_application_error
from saga_workers.runtime.logs import fields
from saga_workers.temporal.refusals import refusal_reason
from saga_workers.trigger.delivery import DeliveryMark
from saga_workers.trigger.group_config import BrokerHealth, is_cooperative
from saga_workers.trigger.start_positions import (
    IDENTITY_INTERVAL,
    OWN_RESET,
    assign_from_commits,
    commit_position,
)
from sagas.builtins.messaging import REQUEST, default_reply_topic
from sagas.definition.model import Definition
from sagas.errors import SagaError, UsageError
from sagas.protocol.payloads import encode_result
from sagas.settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message


log = logging.getLogger("saga.replies")

DeadLetterSink = Callable[["Message", str, str, asyncio.Event], Awaitable[None]]
"""Writes a dead letter and returns when the brokers have it. Arguments: the message, the consumer group, the reason,
and an event that ends the retries.
"""

T = TypeVar("T")

_SELECT_OUTBOX_ID = select(outbox_home_table.c.home).where(outbox_home_table.c.id == 1)

BATCH_SIZE = 200
"""Replies between two commits of offsets."""

MAX_CONCURRENT_REPLIES = 8
"""Replies recorded at the same time; each briefly needs a connection."""

_POLL_TIMEOUT = 0.5
_BACKOFF = Backoff(0.2, 10.0)
"""Seconds until the listener restarts after an error."""

_BURIAL_TIMEOUT = 10.0
"""Seconds that a dead letter may take before ``health`` reports it."""

REPLY_PARTITIONS = 4


class ReplyListener:
    """Receives the replies for this process; several processes share the partitions.

    ``counts`` has the replies by result: ``woken``, ``late`` (recorded, but the attempt is over), ``duplicate``,
    ``unknown`` (no such request), ``refused`` (not from the recipient of the command) and ``malformed``.
    ``on_reply`` is called with each result.
    """

    def __init__(
        self,
        client: Client,
        kafka: KafkaSettings,
        databases: DatabaseConnections,
        topics: Sequence[str],
        *,
        dead_letter_sink: DeadLetterSink,
        on_reply: Callable[[str], None] = lambda _: None,
    ) -> None:
        if kafka.outbox is None:
            raise UsageError(
                "replies are recorded in the outbox database of their commands, and none is configured",
                help='outbox = "…" under [kafka] in saga.toml',
            )
        self._client = client
        self._kafka = kafka
        self._outbox = kafka.outbox
        self._databases = databases
        self._topics = list(topics)
        self._cluster = KafkaAdmin(kafka)
        self._dead_letter_sink = dead_letter_sink
        self._on_reply = on_reply
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._error: str | None = "the listener has not started yet"
        self._broker_health: BrokerHealth | None = None
        self._burying_since: float | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="replies")
        self.counts: Counter[str] = Counter()

    async def start(self) -> None:
        """Start to listen. Errors of Kafka, the database or Temporal show in ``health``, and the listener retries."""
        self._task = asyncio.create_task(self._run(), name="reply listener")

    async def stop(self) -> None:
        """Finish the current replies, commit their offsets and leave the group."""
        self._stopping.set()
        if self._task is not None:
            await self._task
        self._thread.shutdown()

    def health(self) -> str | None:
        """None if it listens, else a message that says what prevents it."""
        if self._task is not None and self._task.done() and not self._stopping.is_set():
            return "the listener has stopped"
        if self._burying_since is not None and time.monotonic() - self._burying_since > _BURIAL_TIMEOUT:
            return "a reply that cannot be used waits for its dead letter topic"
        if self._error is None and self._broker_health is not None:
            return self._broker_health.health()
        return self._error

    async def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                await self._consume()
            except Exception as error:
                if self._stopping.is_set():
                    log.debug("replies in process are left to the next listener", exc_info=error)
                    return
                failures = failures + 1 if self._error is not None else 0  # None: it had been listening
                message = _error_message(error)
                if message is None:
                    log.exception("reply listener stopped by an internal error (a bug in saga)")
                elif message != self._error:
                    log.warning("reply listener cannot consume: %s", message)
                self._error = message or f"{type(error).__name__}: {error}"
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_BACKOFF.delay(failures)):
                        await self._stopping.wait()

    async def _consume(self) -> None:
        """Consume until stopped. Raises whatever fails."""
        from confluent_kafka import Consumer

        engine = self._databases.engine(self._outbox)
        group = f"{self._kafka.prefix}-replies-{await _outbox_id(engine)}"
        await self._in_thread(self._create_topics)
        health = self._broker_health = BrokerHealth(group)
        properties = {**consumer_config(self._kafka, group), **OWN_RESET, **health.properties()}
        topic_ids = await self._in_thread(self._read_topic_ids)
        cooperative = is_cooperative(self._kafka)

        def on_assigned(member: Any, partitions: Any) -> None:
            assign_from_commits(member, group, partitions, topic_ids, is_cooperative=cooperative)

        consumer = await self._in_thread(lambda: Consumer(properties))
        checked_at = 0.0
        try:
            await self._in_thread(lambda: consumer.subscribe(self._topics, on_assign=on_assigned))
            while not self._stopping.is_set():
                batch = await self._in_thread(lambda: _poll_batch(consumer))
                if batch or time.monotonic() - checked_at > IDENTITY_INTERVAL:
                    self._require_same_topics(topic_ids, await self._in_thread(self._read_topic_ids))
                    checked_at = time.monotonic()
                if self._error is not None:
                    log.info("consuming replies", extra=fields(topics=",".join(self._topics), group=group))
                    self._error = None
                if batch:
                    await self._handle_batch(engine, group, batch)
                    await self._in_thread(partial(_commit_offsets, consumer, batch, topic_ids))
        finally:
            await self._in_thread(consumer.close)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """The Kafka client blocks, so its calls have a thread of their own."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _create_topics(self) -> None:
        for topic in self._topics:
            self._cluster.ensure_topic(topic, REPLY_PARTITIONS)

    def _read_topic_ids(self) -> dict[str, str]:
        return {topic: self._cluster.topic_id(topic) for topic in self._topics}

    @staticmethod
    def _require_same_topics(before: Mapping[str, str], now: Mapping[str, str]) -> None:
        """Raise KafkaOperationError if a topic is another one: the next member reads it from its beginning."""
        for topic, topic_id in now.items():
            if topic_id != before[topic]:
                raise KafkaOperationError(f"the topic {topic} was deleted and created again")

    async def _handle_batch(self, engine: AsyncEngine, group: str, batch: Sequence[Message]) -> None:
        by_key: dict[str, list[tuple[Message, Reply]]] = {}
        dead: list[tuple[Message, str, str]] = []
        for message in batch:
            raw: Any = message.value()
            try:
                reply = decode_reply(message.topic() or "", decode_headers(raw_headers(message)), raw)
            except (MalformedReply, MalformedRecord) as error:
                dead.append((message, "malformed", str(error)))
            else:
                by_key.setdefault(reply.key, []).append((message, reply))
        room = asyncio.Semaphore(MAX_CONCURRENT_REPLIES)

        async def take(replies: Sequence[tuple[Message, Reply]]) -> None:
            async with room:
                for message, reply in replies:
                    try:
                        await self._record_reply(engine, reply)
                    except RefusedReply as error:
                        dead.append((message, "refused", str(error)))

        # Wait for all: after a failure no reply may still be in process when the next batch begins.
        ends = await asyncio.gather(*(take(replies) for replies in by_key.values()), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end
        # Last: no other reply of the batch waits for a dead letter topic.
        for message, result, reason in dead:
            self._burying_since = time.monotonic()
            try:
                await self._dead_letter_sink(message, group, reason, self._stopping)
            finally:
                self._burying_since = None
            self._count(result)

    async def _record_reply(self, engine: AsyncEngine, reply: Reply) -> None:
        required = not self._kafka.accept_replies_without_token
        first, found = await kafka_request.record_reply(engine, reply, time.time(), token_required=required)
        if found is None:
            self._count("unknown")
            log.warning("reply without a request ignored", extra=fields(key=reply.key, outcome=reply.outcome))
            return
        if not first and found.outcome != reply.outcome:
            log.warning(
                "second reply %s ignored, the first one was %s",
                reply.outcome,
                found.outcome,
                extra=fields(key=reply.key),
            )
        # Also for a reply read twice: the first time may have ended before the wake-up.
        woken = await complete_attempt(self._client, found, reply.key)
        self._count("woken" if woken else "late" if first else "duplicate")

    def _count(self, result: str) -> None:
        self.counts[result] += 1
        self._on_reply(result)


def _poll_batch(consumer: Consumer) -> list[Message]:
    """The next replies, as soon as there is one; empty after a timeout. Raises KafkaException."""
    from confluent_kafka import KafkaException

    first = consumer.poll(_POLL_TIMEOUT)
    if first is None:
        return []
    batch = [first, *consumer.consume(BATCH_SIZE - 1, 0)]
    for message in batch:
        if (error := message.error()) is not None:
            raise KafkaException(error)
    return batch


def _commit_offsets(consumer: Consumer, batch: Sequence[Message], topic_ids: Mapping[str, str]) -> None:
    """Commit the offsets behind these records. Raises KafkaException."""
    ends: dict[tuple[str, int], int] = {}
    for message in batch:
        ends[message.topic() or "", message.partition() or 0] = (message.offset() or 0) + 1
    offsets = [
        commit_position(topic, partition, offset, DeliveryMark(topic_ids[topic]))
        for (topic, partition), offset in ends.items()
    ]
    consumer.commit(offsets=offsets, asynchronous=False)


async def _outbox_id(engine: AsyncEngine) -> str:
    """The id of the outbox, for the group name: outboxes that share a reply topic all receive every reply."""
    async with engine.connect() as connection:
        return (await connection.execute(_SELECT_OUTBOX_ID)).scalar_one()


def _error_message(error: Exception) -> str | None:
    """The message for an expected error; None for an unexpected one."""
    from confluent_kafka import KafkaException

    if isinstance(error, SagaError):
        return error.message
    if isinstance(error, KafkaException):
        return f"Kafka: {classify_kafka_error(error).reason}"
    if isinstance(error, RPCError):
        return f"Temporal does not answer: {error.message}"
    if (known := database_errors.classify_database_error(error)) is not None:
        return f"the database of the outbox: {known.message}"
    return None


# Completes the activity attempt that waits for a reply. Temporal accepts this from any process that has the task token.
_ATTEMPT_OVER = (RPCStatusCode.NOT_FOUND,)
"""The attempt timed out, the saga rolled back, or the attempt has already been completed."""


async def complete_attempt(client: Client, request: RequestRow, key: str) -> bool:
    """Complete the waiting attempt with the reply in the row; False if no attempt waits any more.

    A late reply is not lost: the next attempt finds it in the row. Raises RPCError if Temporal cannot be reached.
    """
    if request.waiter is None or request.outcome is None:
        return False
    outcome = outcome_of_reply(request.outcome, request.data or "null", request.waiter.attempt)
    handle = client.get_async_activity_handle(task_token=request.waiter.token)
    try:
        if outcome.kind == "done":
            await handle.complete(encode_result(outcome, request.waiter.attempt))
        else:
            await handle.fail(to_application_error(outcome, request.waiter.attempt))
    except RPCError as error:
        if error.status in _ATTEMPT_OVER:
            log.info("reply recorded, the attempt that waited for it is over", extra=fields(key=key))
            return False
        if error.status is RPCStatusCode.PERMISSION_DENIED or refusal_reason(error) is not None:
            log.error("Temporal refused the reply, the next attempt reads it: %s", error.message, extra=fields(key=key))
            return False
        raise
    return True


def reply_topics(definitions: Mapping[str, Definition], prefix: str) -> list[str]:
    """The topics named by the definitions, and the default one, if any step makes a request; else none."""
    found = {
        str((operation.with_ or {}).get("reply_topic") or default_reply_topic(prefix))
        for definition in definitions.values()
        for step in definition.steps
        for operation in step.operations
        if operation.uses == REQUEST
    }
    # Sagas of an older definition may still wait for replies in the default topic.
    return sorted(found | {default_reply_topic(prefix)}) if found else []
