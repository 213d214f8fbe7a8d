"""The Kafka side of one shard: a transactional producer, and one transaction for each batch.

Everything blocks; the shard calls it from one thread at a time. After any error but a passing one the producer is
thrown away: what came of its transaction is read from the progress record, never guessed.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from activities.kafka import wire
from activities.kafka.config import may_come_again, producer_config
from activities.kafka.errors import Failure, Verdict, classify, failure_of
from activities.kafka.topics import Cluster
from sagas.settings import KafkaSettings
from workers.relay import progress
from workers.relay.progress import Progress
from workers.relay.rows import EventRow, Home

log = logging.getLogger("saga.relay")

_BEGIN = 30.0
"""Seconds for ``init_transactions``: it ends the transaction of the producer before us."""

_COMMIT = 30.0
"""Seconds for a commit. After that the next producer's ``init_transactions`` tells what came of it."""

_RETRY = 0.1

_SLICE = 2.0
"""Seconds of one call. librdkafka goes on where it was when it is called again; in between we may be told to stop."""

_CLUSTER = 5.0


Ready = tuple[EventRow, wire.Record]
"""An event, and the record it is written as."""


class PublishTrouble(Exception):
    """A batch was not, or not certainly, published. ``verdict`` says what to do.

    ``row`` is an event it was about; ``alone``: it and no other.
    """

    def __init__(self, verdict: Verdict, row: EventRow | None = None, *, alone: bool = False) -> None:
        super().__init__(verdict.reason)
        self.verdict, self.row, self.alone = verdict, row, alone


class TopicsUnusable(Exception):
    """Topics of a batch cannot be used; nothing was sent. ``reasons``: topic → sentence."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{topic}: {reason}" for topic, reason in reasons.items()))
        self.reasons = reasons


class Publisher:
    """One life of the producer of a shard: ``open``, then ``publish`` for each batch, ``close``.

    ``watching`` has the fate of each event told, until a batch is published: that costs time, and is needed only to
    say which event it was that failed. Without it a batch fails as a whole, with no ``row``. Who waits for a call sets
    ``given_up`` (from any thread) when the answer does not matter any more. Every method raises
    :class:`PublishTrouble`.
    """

    def __init__(self, settings: KafkaSettings, home: Home, shard: int, *, watching: bool = False) -> None:
        self._settings, self._home, self._shard = settings, home, shard
        self.transactional_id = transactional_id(settings, home.home, shard)
        self._topic = progress_topic(settings, home.home)
        self._producer: Any = None
        self.watching = watching
        self.given_up = threading.Event()
        self._known: set[str] = set()
        self._failed: list[tuple[Failure, EventRow | None]] = []
        self._told: list[Failure] = []

    def open(self) -> Progress:
        """Fence whoever had the shard before, end its transaction; returns what was published last.

        Raises SagaError as well: there is no topic for the progress record, or it cannot be read.
        """
        Cluster(self._settings, patience=_CLUSTER).ensure(self._topic, self._home.shards, cleanup="compact")
        self._new_producer()
        return progress.last_progress(self._settings, self._topic, self._shard)

    def _new_producer(self) -> None:
        from confluent_kafka import KafkaException, Producer

        properties = producer_config(self._settings, transactional_id=self.transactional_id)
        try:
            self._producer = Producer({**properties, "error_cb": self._note})
            self._again(lambda left: self._producer.init_transactions(left), _BEGIN)
        except KafkaException as error:
            raise self._trouble(error) from error

    def check_topics(self, topics: Collection[str]) -> None:
        """Raises :class:`TopicsUnusable` for topics that are not there or not ours to use."""
        new = [topic for topic in topics if topic not in self._known]
        if not new:
            return
        missing = Cluster(self._settings, patience=_CLUSTER).missing(new)
        self._known.update(topic for topic in new if topic not in missing)
        if missing:
            raise TopicsUnusable(missing)

    def publish(
        self, events: Sequence[Ready], batch: int, before: Sequence[Ready] = (), singly: Collection[str] = ()
    ) -> None:
        """Write a batch and its progress record in one transaction. ``before``: the batch that may not be marked yet.

        Events of the topics in ``singly`` travel alone: a broker refuses a whole package for one that is too large.
        An error of the commit means nobody knows, unless it says otherwise.
        """
        made = Progress(batch, [row.event_id for row, _ in events], [row.event_id for row, _ in before])
        self._send(events, made, singly)
        self._commit()
        self.watching = False

    def _send(self, events: Sequence[Ready], made: Progress, singly: Collection[str]) -> None:
        """Into an open transaction, until the brokers have it all."""
        from confluent_kafka import KafkaException

        self._failed.clear()
        deadline = time.monotonic() + self._settings.transaction_timeout / 2
        try:
            self._producer.begin_transaction()
            for row, record in events:
                alone = row.topic in singly
                if alone:
                    self._flush(deadline)
                told = partial(self._delivered, row) if alone or self.watching else None
                self._produce(row.topic, record, told, row, deadline)
                if alone:
                    self._flush(deadline)
            key, value = progress.encode(self._shard, made)
            told = partial(self._delivered, None) if self.watching else None
            self._produce(self._topic, wire.Record(value, key), told, None, deadline, partition=self._shard)
            self._flush(deadline)
        except KafkaException as error:
            raise self._trouble(error) from error

    def _commit(self) -> None:
        from confluent_kafka import KafkaException

        began = time.monotonic()
        try:
            self._again(lambda left: self._producer.commit_transaction(left), _COMMIT)
        except KafkaException as error:
            raise self._trouble(error) from error
        if may_come_again(time.monotonic() - began):
            self.close()
            self._new_producer()

    def close(self) -> None:
        """Abort what is open, as far as that is possible, and let the producer go.

        Not by its own ``close``, which waits for ever for a broker that is down.
        """
        from confluent_kafka import KafkaException

        producer, self._producer = self._producer, None
        if producer is None:
            return
        producer.purge()
        try:
            producer.abort_transaction(_SLICE)
        except KafkaException as error:
            # Nothing was open, or Kafka cannot be asked; in that case the next init_transactions ends it.
            log.debug("%s: not aborted: %s", self.transactional_id, error)

    def _produce(
        self, topic: str, record: wire.Record, told: Any, row: EventRow | None, deadline: float, partition: int = -1
    ) -> None:
        """Hand one record over. ``told`` is called with its fate, if anybody wants to know it."""
        from confluent_kafka import KafkaException

        while True:
            try:
                headers = list(record.headers)
                self._producer.produce(
                    topic, record.value, record.key, partition=partition, headers=headers, on_delivery=told
                )
            except BufferError:
                self._producer.poll(_RETRY)
                self._check(deadline)
            except KafkaException as error:
                raise PublishTrouble(classify(error), row, alone=True) from error
            else:
                return

    def _flush(self, deadline: float) -> None:
        while self._producer.flush(_SLICE):
            self._check(deadline)
        self._check(deadline)

    def _check(self, deadline: float) -> None:
        if self._failed:
            # What only fell with the transaction says nothing; the first that says more is the cause.
            found = [(classify(failure), row) for failure, row in self._failed]
            verdict, row = next((one for one in found if one[0].action == "refused"), found[0])
            raise PublishTrouble(verdict, row)
        if time.monotonic() > deadline or self.given_up.is_set():
            raise PublishTrouble(classify(Failure("_TIMED_OUT", "the brokers did not take the batch in time")))

    def _delivered(self, row: EventRow | None, error: Any, _: Any) -> None:
        if error is not None:
            self._failed.append((failure_of(error), row))

    def _again(self, call: Any, patience: float) -> None:
        """Make a call again as long as its errors pass, at most ``patience`` seconds in all."""
        from confluent_kafka import KafkaException

        end = time.monotonic() + patience
        while True:
            try:
                call(_SLICE)
                return
            except KafkaException as error:
                failure = failure_of(error)
                goes_on = failure.retriable and failure.name == "_TIMED_OUT"
                if not (goes_on or classify(failure).action == "retry"):
                    raise
                self._producer.poll(0)  # what the client has to tell is told here
                if time.monotonic() >= end or self.given_up.is_set() or self._hopeless():
                    raise
                time.sleep(_RETRY)

    def _hopeless(self) -> bool:
        """The client itself tries for ever to connect with credentials that are refused."""
        return any(classify(one).action == "refused" for one in self._told)

    def _note(self, error: Any) -> None:
        """Why there is no connection is told here only; the call that waited says no more than "timed out"."""
        self._told.append(failure_of(error))
        log.debug("%s: %s", self.transactional_id, error)

    def _trouble(self, error: Any) -> PublishTrouble:
        failure = failure_of(error)
        telling = [one for one in self._told if classify(one).action == "refused"]
        if failure.name in ("_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN") and telling:
            failure = telling[-1]
        return PublishTrouble(classify(failure))


def encode(row: EventRow, source: str) -> wire.Record:
    """The record of an event."""
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


def transactional_id(settings: KafkaSettings, home: str, shard: int) -> str:
    """The same for every relay that serves the shard: whoever comes later fences the one before."""
    return f"{settings.prefix}-relay-{home}-{shard}"


def progress_topic(settings: KafkaSettings, home: str) -> str:
    return f"{settings.prefix}-relay-{home}"
