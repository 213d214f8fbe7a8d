"""Recovery after the brokers have lost the end of a batch's transaction, so that its events are published exactly once.

Only the shard's producer writes to the shard's partition of the progress topic, and ``init_transactions`` has ended all
of its transactions, so one that is still undecided stays so: it is a hanging transaction. Events of its batches that
consumers can see are recorded as published, the rest becomes NEW again, and only then does the producer end the
transaction by aborting in the same partitions. If the relay dies in between, the next one repeats all of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from sqlalchemy import bindparam, text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.kafka import hanging_transactions, range_reader
from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.transactional_producer import TransactionalProducer
from saga_workers.relay import progress_record
from saga_workers.relay.outbox import Outbox
from saga_workers.relay.readers.event_reader import EventReader
from saga_workers.runtime.logs import fields
from sagas.errors import SagaError
from sagas.settings import KafkaSettings

_ADMIN_TIMEOUT = 5.0


class HangingTransactions:
    """The hanging transactions of a shard's producer; ``topic`` is that of the progress records.

    All methods block, and raise SagaError if the state cannot be determined.
    """

    def __init__(self, settings: KafkaSettings, producer: TransactionalProducer, topic: str, shard: int) -> None:
        self._settings, self._producer, self._topic, self._shard = settings, producer, topic, shard

    def event_ids(self) -> tuple[list[str], float]:
        """The event ids of all batches whose progress record is undecided, and the earliest time at which they can have
        been written (seconds since the epoch).
        """
        transactions = hanging_transactions.open_transactions(self._settings, self._topic).get(self._shard)
        ranges = (
            {self._shard: (transactions.last_stable, transactions.high_watermark)} if transactions is not None else {}
        )
        ids: list[str] = []
        earliest = time.time()
        for message in range_reader.read_ranges(self._settings, self._topic, ranges, uncommitted=True):
            value = message.value()
            if value:
                ids += progress_record.decode_progress(value).event_ids
                earliest = min(earliest, message.timestamp()[1] / 1000)
        return ids, earliest - self._settings.transaction_timeout

    def visible_events(self, topics: Collection[str], ids: Collection[str], since: float) -> set[str]:
        """Return those of the events that consumers can see."""
        visible: set[str] = set()
        stopped = self._producer.cancelled
        for topic in self._existing(topics):
            visible |= hanging_transactions.visible_events(
                self._settings, topic, set(ids), since, lambda: not stopped.is_set()
            )
        if stopped.is_set():
            raise SagaError("the relay stops before the outcome of a hanging transaction is known")
        return visible

    def abort(self, topics: Collection[str]) -> None:
        """Abort the open transactions in these topics and the shard's partition. Also raises KafkaTransactionError."""
        partitions = [
            (topic, partition)
            for topic in self._existing(topics)
            for partition in hanging_transactions.open_transactions(self._settings, topic)
        ]
        self._producer.abort_in([*partitions, (self._topic, self._shard)])

    def _existing(self, topics: Collection[str]) -> list[str]:
        missing = KafkaAdmin(self._settings, timeout=_ADMIN_TIMEOUT).unusable_topics(topics)
        return [topic for topic in topics if topic not in missing]


log = logging.getLogger("saga.relay")

_TOPICS_OF_EVENTS = text("SELECT DISTINCT topic FROM saga_outbox WHERE event_id IN :ids").bindparams(
    bindparam("ids", expanding=True)
)

InThread = Callable[..., Awaitable[Any]]


async def recover_transactions(
    outbox: Outbox, shard: int, reader: EventReader, hanging: HangingTransactions, in_thread: InThread
) -> None:
    """Recover a shard whose progress partition stays undecided.

    Raises SagaError, KafkaTransactionError, SQLAlchemyError.
    """
    about = fields(outbox=outbox.name, shard=shard)
    log.warning("hanging transaction found, checking which of its events are visible", extra=about)
    ids, earliest = await in_thread(hanging.event_ids)
    topics = await _topics_of(outbox.table.engine, ids)
    seen = await in_thread(hanging.visible_events, topics, ids, earliest)
    await reader.record_events(sorted(seen))
    again = await reader.republish(sorted(set(ids) - seen))
    await in_thread(hanging.abort, topics)
    log.warning(
        "hanging transaction aborted: of %d events %d are visible; the others are published again (%d of them were "
        "recorded as published)",
        len(ids),
        len(seen),
        again,
        extra=about,
    )


async def _topics_of(engine: AsyncEngine, event_ids: Sequence[str]) -> list[str]:
    """The topics of these events, as far as their rows still exist."""
    async with engine.connect() as connection:
        return sorted((await connection.execute(_TOPICS_OF_EVENTS, {"ids": list(event_ids)})).scalars())
