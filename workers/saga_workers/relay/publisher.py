"""The Kafka side of one shard: one transaction for each batch, with the record of what is in it.

Everything blocks; the shard calls it from one thread at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from saga_activities.kafka import hanging_transactions, record_codec
from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.transactional_producer import TransactionalProducer
from saga_workers.relay import progress_record
from saga_workers.relay.outbox_table import EventRow, OutboxIdentity
from saga_workers.relay.progress_record import ProgressRecord
from saga_workers.relay.transaction_recovery import HangingTransactions
from sagas.builtins.messaging import FORM_DESCRIPTION, TOPIC, TOPIC_NAME
from sagas.settings import KafkaSettings

_ADMIN_TIMEOUT = 5.0

EncodedEvent = tuple[EventRow, record_codec.EncodedRecord]
"""An event, and the record it is written as."""


class TopicsUnusable(Exception):
    """Topics of a batch cannot be used; nothing was sent. ``reasons``: topic → sentence."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{topic}: {reason}" for topic, reason in reasons.items()))
        self.reasons = reasons


class Publisher:
    """One life of the producer of a shard: ``open``, then ``publish`` for each batch, ``close``.

    ``watching`` has the fate of each event told, until a batch is published: that costs time, and is needed only to
    say which event it was that failed. Without it a batch fails as a whole, with no event named. Whoever waits for a
    call sets ``cancelled`` (from any thread) when the answer does not matter any more. Every method raises
    :class:`KafkaTransactionError`; its ``opaque`` is an :class:`EventRow`.
    """

    def __init__(
        self, settings: KafkaSettings, identity: OutboxIdentity, shard: int, *, track_delivery: bool = False
    ) -> None:
        self._settings, self._identity, self._shard = settings, identity, shard
        self._topic = progress_topic(settings, identity.outbox_id)
        self._producer = TransactionalProducer(settings, transactional_id(settings, identity.outbox_id, shard))
        self.track_delivery = track_delivery
        self.cancelled = self._producer.cancelled
        self._checked_topics: set[str] = set()
        self.hanging = HangingTransactions(settings, self._producer, self._topic, shard)

    def open(self) -> ProgressRecord:
        """Fence whoever had the shard before, end its transaction; returns what was published last.

        Raises SagaError as well: there is no topic for the progress record, or it cannot be read. Undecided: see
        :mod:`saga_workers.relay.transaction_recovery`.
        """
        KafkaAdmin(self._settings, timeout=_ADMIN_TIMEOUT).ensure_topic(
            self._topic, self._identity.shards, cleanup_policy="compact"
        )
        self._producer.open()
        return self.last_progress()

    def last_progress(self) -> ProgressRecord:
        """What was published last. Raises SagaError, Undecided."""
        return progress_record.read_last_progress(self._settings, self._topic, self._shard)

    def unchecked_topics(self, topics: Collection[str]) -> set[str]:
        """Those of the topics that this producer has not used yet."""
        return {*topics} - self._checked_topics

    def check_topics(self, topics: Collection[str], events: Sequence[EncodedEvent]) -> None:
        """Look at topics before this producer writes the first of the events there.

        Raises :class:`TopicsUnusable` for topics that are not there or not ours to use, SagaError when it cannot look.
        """
        missing = KafkaAdmin(self._settings, timeout=_ADMIN_TIMEOUT).unusable_topics([*topics])
        for topic in topics:
            if topic not in missing:
                ids = (row.event_id for row, _ in events if row.topic == topic)
                hanging_transactions.abort_hanging_events(self._settings, self._producer, topic, ids)
                self._checked_topics.add(topic)
        if missing:
            raise TopicsUnusable(missing)

    def publish(
        self,
        events: Sequence[EncodedEvent],
        batch: int,
        unmarked: Sequence[EncodedEvent] = (),
        individual_topics: Collection[str] = (),
    ) -> None:
        """Write a batch and its progress record in one transaction. ``before``: the batch that may not be marked yet.

        Events of the topics in ``singly`` travel alone: a broker refuses a whole package for one that is too large.
        """
        producer = self._producer
        producer.begin(self._settings.transaction_timeout / 2)
        for row, record in events:
            alone = row.topic in individual_topics
            if alone:
                producer.flush()
            told = alone or self.track_delivery
            producer.produce(row.topic, record.value, record.key, record.headers, opaque=row, confirm_delivery=told)
            if alone:
                producer.flush()
        made = ProgressRecord(batch, [row.event_id for row, _ in events], [row.event_id for row, _ in unmarked])
        key, value = progress_record.encode_progress(self._shard, made)
        producer.produce(self._topic, value, key, partition=self._shard, confirm_delivery=self.track_delivery)
        producer.commit()
        self.track_delivery = False

    def close(self) -> None:
        """Abort what is open, as far as that is possible."""
        self._producer.close()


def encode_event(row: EventRow, source: str) -> record_codec.EncodedRecord:
    """The record of an event. Raises ValueError for one whose topic can never be written to."""
    if not _is_topic(row.topic):  # in a transaction it would end the transaction, and name no topic
        raise ValueError(f"{row.topic!r} is not {TOPIC[FORM_DESCRIPTION]}")
    return record_codec.encode(
        row.value if row.value is not None else "null",
        id=row.event_id,
        type=row.type or row.topic,
        source=source,
        time=row.created_at,
        key=row.key,
        headers=None if row.headers == "{}" else json.loads(row.headers),
        saga_id=row.saga_id or None,
        step=row.step or None,
    )


@lru_cache(1024)
def _is_topic(name: str) -> bool:
    return re.fullmatch(TOPIC_NAME, name) is not None


def transactional_id(settings: KafkaSettings, outbox_id: str, shard: int) -> str:
    """The same for every relay that serves the shard: whoever comes later fences the one before."""
    return f"{settings.prefix}-relay-{outbox_id}-{shard}"


def progress_topic(settings: KafkaSettings, outbox_id: str) -> str:
    return f"{settings.prefix}-relay-{outbox_id}"
