"""One consumer group's reading of one topic: read, work off in lanes, commit what has ended.

The client library blocks, so it lives in a thread of its own; everything else happens on the event loop. Reading
goes on while the work is held up (with the partitions paused), so the group never takes the process for dead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from saga_activities.kafka.errors import classify
from saga_workers.trigger.lanes import Lanes
from saga_workers.trigger.membership import Highs, membership
from saga_workers.trigger.metrics import Lag
from saga_workers.trigger.progress import Progress
from saga_workers.trigger.reach import Reach
from saga_workers.trigger.records import Record
from saga_workers.trigger.trying import Stopped
from sagas.settings import KafkaSettings

log = logging.getLogger("saga.trigger")

Handle = Callable[[Record], Awaitable[None]]
"""Does all there is to do for a record, its dead letter included. Raises Stopped when it was not done."""

POLL = 0.2
COMMIT_EVERY = 0.5
HANDOVER = 10.0
"""Seconds that messages in flight have to end when their partition goes to another process."""
AHEAD = 16
"""How many messages are held for each that is worked on."""
SAY_AGAIN = 60.0


@dataclass(frozen=True, slots=True)
class _Item:
    record: Record
    progress: Progress


class Reader:
    """Reads ``topic`` as ``group``. ``width`` messages are worked on at once."""

    def __init__(
        self, settings: KafkaSettings, group: str, topic: str, handle: Handle, *, width: int = 32, batch: int = 500
    ) -> None:
        self.group, self.topic = group, topic
        self._settings = settings
        self._handle = handle
        self._lanes: Lanes[_Item] = Lanes(self._work, width)
        self._most = width * AHEAD
        self._batch = batch
        self._partitions: dict[int, Progress] = {}
        self._highs = Highs()
        self._reach = Reach(group)
        self._paused = False
        self._committing = False
        self._commit_due = 0.0
        self._said: dict[str, float] = {}
        self._thread = ThreadPoolExecutor(1, f"reader-{group}")
        self._client: Any = None
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()

    async def run(self, stop: asyncio.Event, grace: float) -> None:
        """Read until ``stop``; what has begun then may end within ``grace`` seconds."""
        from confluent_kafka import Consumer

        self._stop = stop
        properties = {**membership(self._settings, self.group), **self._reach.properties()}
        self._client = Consumer({**properties, "on_commit": self._committed})
        try:
            self._client.subscribe([self.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
            while not stop.is_set():
                await self._round()
            await self._finish(grace)
        finally:
            await self._lanes.stop()
            await self._in_thread(self._client.close)
            self._thread.shutdown(wait=False)

    def health(self) -> str | None:
        """None, or why nothing can be read at the moment."""
        return self._reach.health()

    def lags(self) -> Iterator[Lag]:
        """How far each partition of this process is behind."""
        for partition, progress in list(self._partitions.items()):
            behind = self._highs.behind(partition, progress.position)
            if behind is not None:
                yield self.group, self.topic, partition, behind

    async def _round(self) -> None:
        await self._hold_or_go_on()
        for read in await self._in_thread(self._read):
            self._take(read)
        if time.monotonic() >= self._commit_due:
            await self._commit()

    def _read(self) -> list[Any]:
        self._highs.ask(self._client)
        first = self._client.poll(POLL)
        if first is None:
            return []
        return [first, *self._client.consume(self._batch - 1, 0)]

    def _take(self, read: Any) -> None:
        error = read.error()
        if error is not None:
            return self._trouble(read, error)
        progress = self._partitions.setdefault(read.partition(), Progress())
        progress.read(read.offset())
        record = Record(read)
        # Without a key nothing has to wait for anything else.
        lane = (record.partition, record.key if record.key is not None else record.offset)
        self._lanes.put(lane, _Item(record, progress))

    def _trouble(self, read: Any, error: Any) -> None:
        from confluent_kafka import KafkaError, KafkaException

        if error.code() == KafkaError._PARTITION_EOF:
            self._partitions.setdefault(read.partition(), Progress()).skip_to(read.offset())
            return
        if error.fatal():
            raise KafkaException(error)
        text, now = classify(error).reason, time.monotonic()
        if now - self._said.get(text, -SAY_AGAIN) >= SAY_AGAIN:
            self._said[text] = now
            log.warning("%s cannot read %s: %s", self.group, self.topic, text)

    async def _work(self, item: _Item) -> None:
        if self._stop.is_set():
            return  # what the one before it in its lane left undone comes first, in another process
        try:
            await self._handle(item.record)
        except Stopped:
            return
        except Exception:
            # Its offset stays, and so does everything behind it: nothing is lost, and somebody has to look.
            log.exception("%s cannot go on with %s: this is a bug in saga", self.group, item.record.place)
            return
        item.progress.end(item.record.offset)

    async def _hold_or_go_on(self) -> None:
        held = self._lanes.held
        if not self._paused and held >= self._most:
            self._paused = True
            await self._in_thread(lambda: self._client.pause(self._client.assignment()))
        elif self._paused and held <= self._most // 2:
            self._paused = False
            await self._in_thread(lambda: self._client.resume(self._client.assignment()))

    async def _commit(self) -> None:
        self._commit_due = time.monotonic() + COMMIT_EVERY
        offsets = self._offsets(self._partitions)
        if offsets and not self._committing:
            self._committing = True
            await self._in_thread(lambda: self._client.commit(offsets=offsets, asynchronous=True))

    def _offsets(self, partitions: Any) -> list[Any]:
        from confluent_kafka import TopicPartition

        wanted = ((one, self._partitions[one].to_commit()) for one in partitions if one in self._partitions)
        return [TopicPartition(self.topic, one, offset) for one, offset in wanted if offset is not None]

    async def _finish(self, grace: float) -> None:
        """Let what has begun end; partitions stay paused, and the group hears of us meanwhile."""
        self._lanes.drop(lambda _: True)
        ending = asyncio.create_task(self._lanes.idle())
        deadline = time.monotonic() + grace
        await self._in_thread(lambda: self._client.pause(self._client.assignment()))
        while not ending.done() and time.monotonic() < deadline:
            await self._in_thread(lambda: self._client.poll(POLL))
        ending.cancel()

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        return await self._loop.run_in_executor(self._thread, call)

    # Called in the thread, from within poll() and close().

    def _assigned(self, _: Any, partitions: list[Any]) -> None:
        log.info("%s reads partitions %s of %s", self.group, [one.partition for one in partitions], self.topic)
        # What was paused when it was taken from us, and comes back, is still paused: the next round resumes it.
        self._paused = True

    def _revoked(self, client: Any, partitions: list[Any]) -> None:
        self._hand_over(client, partitions, commit=True)

    def _lost(self, client: Any, partitions: list[Any]) -> None:
        self._hand_over(client, partitions, commit=False)

    def _hand_over(self, client: Any, partitions: list[Any], *, commit: bool) -> None:
        """Partitions go to another process: what is in flight may end, and what has ended is committed."""
        from confluent_kafka import KafkaException

        going = [one.partition for one in partitions]
        asyncio.run_coroutine_threadsafe(self._drain(going), self._loop).result()
        offsets = self._offsets(going)
        for one in going:
            self._partitions.pop(one, None)
        if commit and offsets:
            try:
                client.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:
                log.warning("%s could not commit while handing over: %s", self.group, classify(error).reason)

    async def _drain(self, going: list[int]) -> None:
        known = [self._partitions[one] for one in going if one in self._partitions]

        def theirs(item: _Item) -> bool:
            return any(item.progress is one for one in known)

        self._lanes.drop(theirs)
        await self._lanes.ended(theirs, HANDOVER)

    def _committed(self, error: Any, partitions: list[Any]) -> None:
        self._committing = False
        if error is not None:
            log.info("%s commits again: %s", self.group, classify(error).reason)
            return
        for one in partitions:
            if one.error is None and one.partition in self._partitions:
                self._partitions[one.partition].committed(one.offset)
