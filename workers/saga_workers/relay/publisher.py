"""The Kafka side of one shard: one transaction per batch, with the progress record in it.

All calls block; the shard makes them from one thread at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from saga_activities.kafka import hanging_transactions, record_codec
from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.transactional_producer import TransactionalProducer
from saga_workers.relay import progress_record
from saga_workers.relay.outbox_table import EventRow, OutboxIdentity
from saga_workers.relay.progress_record import ProgressRecord
from saga_workers.relay.transaction_recovery import HangingTransactions
from sagas.builtins.messaging import topic_problem
from sagas.settings import KafkaSettings
from sagas.text.exact_json import decode_json

_ADMIN_TIMEOUT = 5.0

_TOPICS_MAX_AGE = 5.0
"""Seconds for which a look at a topic counts. A transaction is checked before its commit anyway, so an older look costs
a repetition after a change, and a new one costs each event a request.
"""

EncodedEvent = tuple[EventRow, record_codec.EncodedRecord]
"""An event and the record that carries it."""


class TopicsUnusable(Exception):
    """Topics of a batch cannot be used; nothing was sent. ``reasons``: topic → message."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{topic}: {reason}" for topic, reason in reasons.items()))
        self.reasons = reasons


class Publisher:
    """One producer of a shard: ``fence_and_open``, then ``publish`` for each batch, then ``close``.

    With ``track_delivery`` the delivery of each event is confirmed until a batch is published. That takes time and is
    needed only to find the event that failed; without it a batch fails as a whole and the error names no event. To
    abandon a call, set ``cancelled`` from any thread. Every method raises :class:`KafkaTransactionError`, whose
    ``opaque`` is an :class:`EventRow`.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        identity: OutboxIdentity,
        shard: int,
        *,
        track_delivery: bool = False,
    ) -> None:
        self._settings, self._identity, self._shard = settings, identity, shard
        self._topic = progress_topic(settings, identity.outbox_id)
        self._producer = TransactionalProducer(settings, transactional_id(settings, identity.outbox_id, shard))
        self.track_delivery = track_delivery
        self.cancelled = self._producer.cancelled
        self._checked_topics: set[str] = set()
        self.hanging = HangingTransactions(settings, self._producer, self._topic, shard)

    def fence_and_open(self) -> ProgressRecord:
        """Fence the previous producer of the shard and end its transaction; returns the last progress record.

        Also raises SagaError if the progress topic is missing or unreadable, and HangingTransaction, see
        :mod:`saga_workers.relay.transaction_recovery`.
        """
        KafkaAdmin(self._settings, timeout=_ADMIN_TIMEOUT).ensure_topic(
            self._topic, self._identity.shards, cleanup_policy="compact"
        )
        self._producer.fence_and_open()
        return self.last_progress()

    def last_progress(self) -> ProgressRecord:
        """The last progress record. Raises SagaError, HangingTransaction."""
        return progress_record.read_last_progress(self._settings, self._topic, self._shard)

    def check_topics(self, events: Sequence[EncodedEvent]) -> None:
        """Look at the topics of the next batch, and abort hanging transactions where this producer first writes.

        Raises :class:`TopicsUnusable` for topics that are missing or that this user may not write to, and SagaError if
        the check itself fails.
        """
        topics = {row.topic for row, _ in events}
        missing = self._producer.use_topics(topics, _TOPICS_MAX_AGE)
        for topic in topics - self._checked_topics - missing.keys():
            ids = (row.event_id for row, _ in events if row.topic == topic)
            hanging_transactions.abort_hanging_events(self._settings, self._producer, topic, ids)
            self._checked_topics.add(topic)
        if missing:
            raise TopicsUnusable(missing)

    def unusable_topics(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return those of the topics that cannot be used now, and why. Raises SagaError if that cannot be
        determined.
        """
        return KafkaAdmin(self._settings, timeout=_ADMIN_TIMEOUT).unusable_topics([*topics])

    def publish(
        self,
        events: Sequence[EncodedEvent],
        batch: int,
        unrecorded: Sequence[EncodedEvent] = (),
        individual_topics: Collection[str] = (),
    ) -> None:
        """Write a batch and its progress record in one transaction.

        ``unrecorded``: the batch before, which the database may not have recorded yet.

        Events of ``individual_topics`` are sent alone: a broker refuses a whole record batch if one record is too
        large.
        """
        producer = self._producer
        producer.begin(self._settings.transaction_timeout / 2)
        if self.track_delivery or individual_topics:
            self._produce_individually(events, individual_topics)
        else:
            producer.produce_all((row.topic, record) for row, record in events)
        made = ProgressRecord(batch, [row.event_id for row, _ in events], [row.event_id for row, _ in unrecorded])
        key, value = progress_record.encode_progress(self._shard, made)
        producer.produce(self._topic, value, key, partition=self._shard, confirm_delivery=self.track_delivery)
        producer.commit()
        self.track_delivery = False

    def _produce_individually(self, events: Sequence[EncodedEvent], individual_topics: Collection[str]) -> None:
        """Enqueue events so that an error names the one that caused it."""
        producer = self._producer
        for row, record in events:
            alone = row.topic in individual_topics
            if alone:
                producer.flush()
            confirm = alone or self.track_delivery
            producer.produce(row.topic, record.value, record.key, record.headers, opaque=row, confirm_delivery=confirm)
            if alone:
                producer.flush()

    def close(self) -> None:
        """Abort the open transaction, if possible."""
        self._producer.close()


def encode_event(row: EventRow, source: str) -> record_codec.EncodedRecord:
    """The record of an event. Raises ValueError if its topic name is invalid."""
    _, event_id, topic, key, value, headers, saga_id, step, _, created_at, type = row
    if problem := topic_problem(topic):  # sent anyway, it would fail the transaction with an error that names no topic
        raise ValueError(problem)
    return record_codec.encode(
        value if value is not None else "null",
        id=event_id,
        type=type or topic,
        source=source,
        time=created_at,
        key=key,
        headers=None if headers == "{}" else decode_json(headers),
        saga_id=saga_id or None,
        step=step or None,
    )


def transactional_id(settings: KafkaSettings, outbox_id: str, shard: int) -> str:
    """The transactional id of the shard, equal for every relay that serves it, so that a new producer fences the
    previous one.
    """
    return f"{settings.prefix}-relay-{outbox_id}-{shard}"


def progress_topic(settings: KafkaSettings, outbox_id: str) -> str:
    return f"{settings.prefix}-relay-{outbox_id}"
