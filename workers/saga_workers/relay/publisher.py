"""The Kafka side of one shard: one transaction for each batch, with the record of what is in it.

Everything blocks; the shard calls it from one thread at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from saga_activities.kafka import lost_ends, wire
from saga_activities.kafka.topics import Cluster
from saga_activities.kafka.transactions import TransactionalProducer
from saga_workers.relay import progress
from saga_workers.relay.lost import Lost
from saga_workers.relay.progress import Progress
from saga_workers.relay.rows import EventRow, Home
from sagas.builtins_messaging import FORM, TOPIC, TOPIC_NAME
from sagas.settings import KafkaSettings

_CLUSTER = 5.0

Ready = tuple[EventRow, wire.Record]
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
    call sets ``given_up`` (from any thread) when the answer does not matter any more. Every method raises
    :class:`~saga_activities.kafka.transactions.TransactionTrouble`; what it is ``about`` is an :class:`EventRow`.
    """

    def __init__(self, settings: KafkaSettings, home: Home, shard: int, *, watching: bool = False) -> None:
        self._settings, self._home, self._shard = settings, home, shard
        self._topic = progress_topic(settings, home.home)
        self._producer = TransactionalProducer(settings, transactional_id(settings, home.home, shard))
        self.watching = watching
        self.given_up = self._producer.given_up
        self._known: set[str] = set()
        self.lost = Lost(settings, self._producer, self._topic, shard)

    def open(self) -> Progress:
        """Fence whoever had the shard before, end its transaction; returns what was published last.

        Raises SagaError as well: there is no topic for the progress record, or it cannot be read. Undecided: see
        :mod:`saga_workers.relay.mending`.
        """
        Cluster(self._settings, patience=_CLUSTER).ensure(self._topic, self._home.shards, cleanup="compact")
        self._producer.open()
        return self.last()

    def last(self) -> Progress:
        """What was published last. Raises SagaError, Undecided."""
        return progress.last_progress(self._settings, self._topic, self._shard)

    def unknown(self, topics: Collection[str]) -> set[str]:
        """Those of the topics that this producer has not used yet."""
        return {*topics} - self._known

    def check_topics(self, topics: Collection[str], events: Sequence[Ready]) -> None:
        """Look at topics before this producer writes the first of the events there.

        Raises :class:`TopicsUnusable` for topics that are not there or not ours to use, SagaError when it cannot look.
        """
        missing = Cluster(self._settings, patience=_CLUSTER).missing([*topics])
        for topic in topics:
            if topic not in missing:
                ids = (row.event_id for row, _ in events if row.topic == topic)
                lost_ends.end_tries_at(self._settings, self._producer, topic, ids)
                self._known.add(topic)
        if missing:
            raise TopicsUnusable(missing)

    def publish(
        self, events: Sequence[Ready], batch: int, before: Sequence[Ready] = (), singly: Collection[str] = ()
    ) -> None:
        """Write a batch and its progress record in one transaction. ``before``: the batch that may not be marked yet.

        Events of the topics in ``singly`` travel alone: a broker refuses a whole package for one that is too large.
        """
        producer = self._producer
        producer.begin(self._settings.transaction_timeout / 2)
        for row, record in events:
            alone = row.topic in singly
            if alone:
                producer.flush()
            told = alone or self.watching
            producer.produce(row.topic, record.value, record.key, record.headers, about=row, told=told)
            if alone:
                producer.flush()
        made = Progress(batch, [row.event_id for row, _ in events], [row.event_id for row, _ in before])
        key, value = progress.encode(self._shard, made)
        producer.produce(self._topic, value, key, partition=self._shard, told=self.watching)
        producer.commit()
        self.watching = False

    def close(self) -> None:
        """Abort what is open, as far as that is possible."""
        self._producer.close()


def encode(row: EventRow, source: str) -> wire.Record:
    """The record of an event. Raises ValueError for one whose topic can never be written to."""
    if not _is_topic(row.topic):  # in a transaction it would end the transaction, and name no topic
        raise ValueError(f"{row.topic!r} is not {TOPIC[FORM]}")
    return wire.encode(
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


def transactional_id(settings: KafkaSettings, home: str, shard: int) -> str:
    """The same for every relay that serves the shard: whoever comes later fences the one before."""
    return f"{settings.prefix}-relay-{home}-{shard}"


def progress_topic(settings: KafkaSettings, home: str) -> str:
    return f"{settings.prefix}-relay-{home}"
