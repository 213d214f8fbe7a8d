"""One shard of one outbox: waits for its lease, publishes in transactions, and replaces its producer after errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.concurrency import Backoff, wait_first
from saga_activities.kafka.admin import KafkaOperationError
from saga_activities.kafka.errors import classify_kafka_error
from saga_activities.kafka.transactional_producer import KafkaTransactionError
from saga_workers.relay.outbox import Outbox, ShardState
from saga_workers.relay.outbox_table import MissingKey
from saga_workers.relay.pipeline import Pipeline
from saga_workers.relay.progress_record import HangingTransaction, NewerRelay
from saga_workers.relay.publisher import Publisher
from saga_workers.relay.readers.event_reader import EventReader
from saga_workers.relay.readers.marked_reader import MarkedReader
from saga_workers.relay.readers.window_reader import WindowReader
from saga_workers.relay.transaction_recovery import recover_transactions
from saga_workers.runtime.database_access import driver_message
from saga_workers.runtime.lease import LEASE_TERM, RENEWAL_INTERVAL, Lease, hold_lease
from saga_workers.runtime.logs import fields
from sagas.errors import SagaError

log = logging.getLogger("saga.relay")

DATABASE_TIMEOUT = 10.0
"""Seconds a statement may take."""

_STOP_GRACE = 2.0
"""Seconds that a transaction under way has to end when the relay stops."""

P = ParamSpec("P")
T = TypeVar("T")


class Shard:
    """Publishes one shard while this process holds its lease."""

    def __init__(self, outbox: Outbox, number: int) -> None:
        self._outbox, self._number = outbox, number
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"relay-{outbox.name}-{number}")
        self._state = outbox.states.setdefault(number, ShardState())
        self._reader = make_reader(outbox.table.engine, number)
        self._individual_topics: set[str] = set()
        self._track_delivery = False
        self._fields = {"outbox": outbox.name, "shard": number}

    async def run(self) -> None:
        """Publish until the relay stops; with ``once``, until nothing is new.

        Raises SagaError if Kafka refuses a setting and, with ``once``, also if Kafka denies access: nobody waits for an
        operator then.
        """
        try:
            while not self._outbox.stop.is_set():
                lease = await self._acquire()
                if lease is None and self._outbox.once and self._state.state == "standby":
                    log.info("shard is leased to another relay", extra=fields(**self._fields))
                    return
                if lease is None:
                    await self._sleep(RENEWAL_INTERVAL)
                    continue
                log.info("lease acquired", extra=fields(**self._fields))
                async with hold_lease(self._outbox.leases, lease) as lost:
                    done = await self._publish_while_leased(lease, lost)
                if done and self._outbox.once:
                    return
                if lost.is_set():
                    log.warning("lease lost, shard on standby", extra=fields(**self._fields))
                    self._set_state("standby")
        finally:
            self._thread.shutdown(wait=False)
            self._state.ended = True

    async def _acquire(self) -> Lease | None:
        try:
            async with asyncio.timeout(DATABASE_TIMEOUT):
                lease = await self._outbox.leases.acquire(self._number)
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            self._set_error(f"the database does not answer: {driver_message(error)}")
            return None
        if lease is None and self._state.state != "fenced":
            self._set_state("standby")
        return lease

    async def _publish_while_leased(self, lease: Lease, lease_lost: asyncio.Event) -> bool:
        """Publish with one producer after the other until the lease is lost.

        True: the relay stops, or (with ``once``) all new events are published.
        """
        pauses, fences = Backoff(0.2, 5.0).restarting(), Backoff(1.0, 30.0).restarting()
        while not (lease_lost.is_set() or self._outbox.stop.is_set()):
            watching, self._track_delivery = self._track_delivery, False
            publisher = Publisher(
                self._outbox.settings,
                self._outbox.identity,
                self._number,
                track_delivery=watching,
            )
            pause = 0.0
            giving_up = asyncio.create_task(self._cancel_on_stop(publisher))
            try:
                await self._open_and_publish(publisher, lease_lost)
                return not lease_lost.is_set()
            except KafkaTransactionError as trouble:
                pause = await self._handle_error(trouble, publisher, pauses, fences)
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                self._set_error(f"the database does not answer: {driver_message(error)}")
                pause = next(pauses)
            except SagaError as error:
                if self._outbox.once and (isinstance(error, NewerRelay | MissingKey) or _needs_operator(error)):
                    raise
                self._set_error(error.message)
                pause = next(pauses)
            finally:
                giving_up.cancel()
                await self._in_thread(publisher.close)
            self._outbox.metrics.rebuilt(self._outbox.name)
            if await self._sleep(pause, lease_lost) and self._state.state == "fenced":
                await self._confirm_lease(lease, lease_lost)
        return not lease_lost.is_set()

    async def _cancel_on_stop(self, publisher: Publisher) -> None:
        """On stop, give a call under way a short time to end, then cancel it: the broker may be down."""
        await self._outbox.stop.wait()
        await asyncio.sleep(_STOP_GRACE)
        publisher.cancelled.set()

    async def _open_and_publish(self, publisher: Publisher, lease_lost: asyncio.Event) -> None:
        if self._state.state == "standby":
            self._set_state("starting")
        try:
            done = await self._in_thread(publisher.fence_and_open)
        except HangingTransaction as undecided:
            self._set_error(undecided.message)
            await self._reader.begin()
            await recover_transactions(self._outbox, self._number, self._reader, publisher.hanging, self._in_thread)
            done = await self._in_thread(publisher.last_progress)
        await self._reader.begin()
        recorded = await self._reader.record_events([*done.previous_event_ids, *done.event_ids])
        if recorded:
            log.info("%d published events recorded", recorded, extra=fields(**self._fields, batch=done.batch))
        self._set_state("publishing")
        pipeline = Pipeline(
            self._outbox, self._number, publisher, self._reader, self._in_thread, self._individual_topics, lease_lost
        )
        await pipeline.run(done.batch)

    async def _handle_error(
        self, error: KafkaTransactionError, publisher: Publisher, pauses: Iterator[float], fences: Iterator[float]
    ) -> float:
        """Handle a Kafka error; returns the backoff in seconds before the next producer."""
        verdict, row = error.verdict, error.opaque
        if verdict.fenced:
            self._outbox.metrics.fenced(self._outbox.name)
            if self._state.state != "fenced":
                log.warning("producer fenced: %s", verdict.reason, extra=fields(**self._fields))
            self._set_state(
                "fenced", "another relay has published the shard, or Kafka has aborted a transaction of this one"
            )
            return next(fences)
        if verdict.action == "refused" and row is not None and verdict.scope == "topic":
            if self._outbox.suspended_topics.suspend(row.topic, verdict.reason):
                log.warning("topic suspended: %s", verdict.reason, extra=fields(**self._fields, topic=row.topic))
            return 0.0
        if verdict.action == "refused" and row is not None and verdict.scope == "event":
            return await self._refuse_event(error)
        if verdict.scope == "setting" or (self._outbox.once and verdict.scope == "client"):
            raise SagaError(f"Kafka refuses the relay of the outbox {self._outbox.name}: {verdict.reason}")
        if not publisher.track_delivery and (verdict.action == "abort" or verdict.scope in ("topic", "event")):
            # Some event cannot be delivered; the batch is sent again with delivery tracking, to learn which and why.
            self._track_delivery = True
            return 0.0
        self._set_error(f"Kafka: {verdict.reason}")
        return next(pauses)

    async def _refuse_event(self, cause: KafkaTransactionError) -> float:
        row = cause.opaque
        if not cause.single_record and row.topic not in self._individual_topics:
            # A record batch of several events was refused; sent one by one, they show which one it is.
            self._individual_topics.add(row.topic)
            return 0.0
        try:
            await self._reader.refuse(row.event_id, cause.verdict.reason)
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            self._set_error(f"the database does not answer: {driver_message(error)}")
            return 1.0
        self._outbox.metrics.refused(self._outbox.name)
        about = fields(**self._fields, event=row.event_id, topic=row.topic)
        log.warning("event is REFUSED: %s", cause.verdict.reason, extra=about)
        return 0.0

    async def _confirm_lease(self, lease: Lease, lease_lost: asyncio.Event) -> None:
        """Check after a fence whether the shard is still leased to this relay."""
        try:
            async with asyncio.timeout(LEASE_TERM):
                if not await self._outbox.leases.renew(lease):
                    lease_lost.set()
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            self._set_error(f"the database does not answer: {driver_message(error)}")

    async def _sleep(self, seconds: float, lease_lost: asyncio.Event | None = None) -> bool:
        """Sleep, but at most until the relay stops or the lease is lost; False if that cut it short."""
        events = [self._outbox.stop] + ([lease_lost] if lease_lost is not None else [])
        return not await wait_first(*(event.wait() for event in events), timeout=seconds)

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._state.calls_kafka = True
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: call(*args, **kwargs))
        finally:
            self._state.calls_kafka = False

    def _set_state(self, state: str, reason: str = "") -> None:
        if self._state.state == "trouble" and state == "publishing":
            log.info("publishing resumed", extra=fields(**self._fields))
        self._state.state, self._state.reason = state, reason  # pyright: ignore[reportAttributeAccessIssue]

    def _set_error(self, message: str) -> None:
        """Set the error state; logged when an error begins or changes, not at every attempt."""
        if (self._state.state, self._state.reason) != ("trouble", message):
            log.warning("publishing failed: %s", message, extra=fields(**self._fields))
        self._set_state("trouble", message)


def make_reader(engine: AsyncEngine, shard: int) -> EventReader:
    """The reader for this database."""
    return (WindowReader if engine.dialect.name == "postgresql" else MarkedReader)(engine, shard)


def _needs_operator(error: SagaError) -> bool:
    """Return whether Kafka refuses something that only an operator can change."""
    failure = error.error_info if isinstance(error, KafkaOperationError) else None
    return failure is not None and classify_kafka_error(failure).action == "refused"
