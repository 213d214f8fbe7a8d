"""Consumes the reply topics: records each reply in the row of its command, wakes the saga, then moves the offset.

Killed anywhere in between, it reads the same replies again. Recording is one conditional update, so the first reply
counts; waking an attempt that is over does nothing. What cannot be read goes to the dead letters.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client
from temporalio.service import RPCError

from saga_activities.connections import Connections
from saga_activities.guard import errors as database_errors
from saga_activities.guard.tables_messaging import outbox_home
from saga_activities.kafka.config import consumer_config
from saga_activities.kafka.errors import classify
from saga_activities.kafka.topics import Cluster
from saga_activities.kafka.wire import read_headers
from saga_activities.request import rows
from saga_activities.request.reply import MalformedReply, Reply, decode_reply
from saga_workers.replies.waking import wake
from sagas.errors import SagaError, UsageError
from sagas.settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

log = logging.getLogger("saga.replies")

Bury = Callable[["Message", str, str, asyncio.Event], Awaitable[None]]
"""A message, the group that gives it up, why, and an event: do not go on trying when it is set."""

T = TypeVar("T")

_HOME = select(outbox_home.c.home).where(outbox_home.c.id == 1)

BATCH = 200
"""Replies between two commits of offsets."""

AT_ONCE = 8
"""Replies recorded at the same time; each needs a connection for a moment."""

_POLL = 0.5
_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds until it begins anew after trouble, the last one for as long as it lasts."""

PARTITIONS = 4


class ReplyListener:
    """One listener of this process; several processes share the partitions.

    ``counts`` says what became of the replies: ``woken``, ``late`` (recorded, nobody waits any more), ``duplicate``,
    ``unknown`` (nobody has asked) and ``malformed``; ``counted`` is told each of these words, too. ``bury`` writes a
    dead letter, and returns when the brokers have it.
    """

    def __init__(
        self,
        client: Client,
        kafka: KafkaSettings,
        databases: Connections,
        topics: Sequence[str],
        *,
        bury: Bury,
        counted: Callable[[str], None] = lambda _: None,
    ) -> None:
        if kafka.outbox is None:
            raise UsageError('Replies need the database of their commands: [kafka] outbox = "…" in saga.toml.')
        self._client = client
        self._kafka = kafka
        self._outbox = kafka.outbox
        self._databases = databases
        self._topics = list(topics)
        self._bury = bury
        self._counted = counted
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._trouble: str | None = "it has not begun yet"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="replies")
        self.counts: Counter[str] = Counter()

    async def start(self) -> None:
        """Begin to listen; trouble with Kafka, the database or Temporal shows in ``health`` and is waited out."""
        self._task = asyncio.create_task(self._run(), name="reply listener")

    async def stop(self) -> None:
        """Finish the replies at hand, commit their offsets and leave the group."""
        self._stopping.set()
        if self._task is not None:
            await self._task
        self._thread.shutdown()

    def health(self) -> str | None:
        """None: it listens. Otherwise one sentence that says what is in the way."""
        if self._task is not None and self._task.done() and not self._stopping.is_set():
            return "it has ended"
        return self._trouble

    async def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                await self._listen()
            except Exception as error:
                if self._stopping.is_set():
                    log.debug("what was at hand is left to the next listener", exc_info=error)
                    return
                failures = failures + 1 if self._trouble is not None else 0  # None: it had come as far as listening
                sentence = _sentence(error)
                if sentence is None:
                    log.exception("replies are not heard: this is a bug in saga")
                elif sentence != self._trouble:
                    log.warning("replies are not heard: %s", sentence)
                self._trouble = sentence or f"{type(error).__name__}: {error}"
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), _PAUSES[min(failures, len(_PAUSES) - 1)])

    async def _listen(self) -> None:
        """Until told to stop, or until something fails."""
        from confluent_kafka import Consumer

        engine = self._databases.engine(self._outbox)
        group = f"{self._kafka.prefix}-replies-{await _home(engine)}"
        await self._call(self._make_topics)
        consumer = await self._call(lambda: Consumer(consumer_config(self._kafka, group)))
        try:
            await self._call(lambda: consumer.subscribe(self._topics))
            while not self._stopping.is_set():
                batch = await self._call(lambda: _take(consumer))
                if self._trouble is not None:
                    log.info("listening for replies in %s as %s", ", ".join(self._topics), group)
                    self._trouble = None
                if batch:
                    await self._handle(engine, group, batch)
                    await self._call(partial(_commit, consumer, batch))
        finally:
            await self._call(consumer.close)

    async def _call(self, work: Callable[[], T]) -> T:
        """The client of Kafka blocks; it has one thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _make_topics(self) -> None:
        cluster = Cluster(self._kafka)
        for topic in self._topics:
            cluster.ensure(topic, PARTITIONS)

    async def _handle(self, engine: AsyncEngine, group: str, batch: Sequence[Message]) -> None:
        by_key: dict[str, list[Reply]] = {}
        for message in batch:
            raw: Any = message.value()
            try:
                reply = decode_reply(read_headers(message), raw)
            except MalformedReply as error:
                await self._bury(message, group, str(error), self._stopping)
                self._count("malformed")
            else:
                by_key.setdefault(reply.key, []).append(reply)
        room = asyncio.Semaphore(AT_ONCE)

        async def take(replies: Sequence[Reply]) -> None:
            async with room:
                for reply in replies:
                    await self._take(engine, reply)

        # A failing reply must not leave others running behind the back of the next batch.
        ends = await asyncio.gather(*(take(replies) for replies in by_key.values()), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def _take(self, engine: AsyncEngine, reply: Reply) -> None:
        first, found = await rows.record(engine, reply, time.time())
        if found is None:
            self._count("unknown")
            log.warning("a reply (%s) to %s, for which nobody has asked here, is ignored", reply.outcome, reply.key)
            return
        if not first and found.outcome != reply.outcome:
            log.warning(
                "%s: a second reply says %s, the first one said %s and counts", reply.key, reply.outcome, found.outcome
            )
        # A reply read twice may be one whose waking was cut short.
        woken = await wake(self._client, found, reply.key)
        self._count("woken" if woken else "late" if first else "duplicate")

    def _count(self, what: str) -> None:
        self.counts[what] += 1
        self._counted(what)


def _take(consumer: Consumer) -> list[Message]:
    """The next replies, as soon as there is one; none after a while without any. Raises KafkaException."""
    from confluent_kafka import KafkaException

    first = consumer.poll(_POLL)
    if first is None:
        return []
    batch = [first, *consumer.consume(BATCH - 1, 0)]
    for message in batch:
        if (error := message.error()) is not None:
            raise KafkaException(error)
    return batch


def _commit(consumer: Consumer, batch: Sequence[Message]) -> None:
    """The group goes on behind these records. Raises KafkaException."""
    from confluent_kafka import TopicPartition

    ends: dict[tuple[str, int], int] = {}
    for message in batch:
        ends[message.topic() or "", message.partition() or 0] = (message.offset() or 0) + 1
    offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in ends.items()]
    consumer.commit(offsets=offsets, asynchronous=False)


async def _home(engine: AsyncEngine) -> str:
    """The identity of the outbox: two of them that share a reply topic both hear every reply."""
    async with engine.connect() as connection:
        return (await connection.execute(_HOME)).scalar_one()


def _sentence(error: Exception) -> str | None:
    """What is in the way; None: nobody has thought of that."""
    from confluent_kafka import KafkaException

    if isinstance(error, SagaError):
        return error.message
    if isinstance(error, KafkaException):
        return f"Kafka: {classify(error).reason}"
    if isinstance(error, RPCError):
        return f"Temporal does not answer: {error.message}"
    if (trouble := database_errors.classify(error)) is not None:
        return f"the database of the outbox: {trouble.message}"
    return None
