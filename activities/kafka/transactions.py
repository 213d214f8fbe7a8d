"""Write records in transactions under a stable id: whoever comes later with the same id ends what is open, and fences
whoever had it before. Everything blocks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from activities.kafka.config import may_come_again, producer_config
from activities.kafka.errors import Failure, Verdict, classify, failure_of
from activities.kafka.wire import Record
from sagas.settings import KafkaSettings

log = logging.getLogger("saga.kafka")

_PATIENCE = 30.0
"""Seconds to begin, and to commit. After that the next producer of the id tells what came of it."""

_SLICE = 2.0
_RETRY = 0.1

Sent = tuple[str, int, Record]
"""Topic, partition (-1: by the key) and what is written there."""


class TransactionTrouble(Exception):
    """A transaction was not, or not certainly, committed. ``verdict`` says what that means."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


class Transactions:
    """One life of a transactional producer. After trouble it is not used again: a new one's ``open`` ends what this
    one began, and what came of it is then read. Every method raises :class:`TransactionTrouble`."""

    def __init__(self, settings: KafkaSettings, transactional_id: str) -> None:
        self._settings = settings
        self._id = transactional_id
        self._producer: Any = None
        self._failed: list[Failure] = []
        self._told: list[Failure] = []

    def open(self) -> Transactions:
        """Fence whoever had the id before, and end its transaction."""
        from confluent_kafka import KafkaException, Producer

        properties = producer_config(self._settings, transactional_id=self._id)
        try:
            self._producer = Producer({**properties, "error_cb": lambda error: self._told.append(failure_of(error))})
            self._again(lambda: self._producer.init_transactions(_SLICE))
        except KafkaException as error:
            raise self._trouble(error) from error
        return self

    def write(self, records: Iterable[Sent]) -> None:
        """All of them become visible at once, or none."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + self._settings.transaction_timeout
        self._failed.clear()
        try:
            self._producer.begin_transaction()
            for topic, partition, record in records:
                self._produce(topic, partition, record, deadline)
            while self._producer.flush(_SLICE):
                self._check(deadline)
            self._check(deadline)
            began = time.monotonic()
            self._again(lambda: self._producer.commit_transaction(_SLICE))
            if may_come_again(time.monotonic() - began):
                self.close()
                self.open()
        except KafkaException as error:
            raise self._trouble(error) from error
        except SystemError as error:
            # The library ends a flush so, without a reason, when the producer is fenced meanwhile. Nobody knows then.
            verdicts = [classify(one) for one in (*self._told, *self._failed)]
            unknown = classify(Failure("_FAIL", str(error)))
            raise TransactionTrouble(next((one for one in verdicts if one.fenced), unknown)) from error

    def close(self) -> None:
        """Abort what is open, as far as that is possible. Not by its own ``close``, which waits for ever for a broker
        that is down."""
        from confluent_kafka import KafkaException

        producer, self._producer = self._producer, None
        if producer is None:
            return
        producer.purge()
        try:
            producer.abort_transaction(_SLICE)
        except KafkaException as error:  # nothing was open, or the next producer of the id ends it
            log.debug("%s: not aborted: %s", self._id, error)

    def _produce(self, topic: str, partition: int, record: Record, deadline: float) -> None:
        while True:
            try:
                self._producer.produce(
                    topic,
                    record.value,
                    record.key,
                    partition,
                    headers=list(record.headers),
                    on_delivery=self._delivered,
                )
            except BufferError:
                self._producer.poll(_RETRY)
                self._check(deadline)
            else:
                self._producer.poll(0)
                return

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failed.append(failure_of(error))

    def _check(self, deadline: float) -> None:
        if self._failed:
            verdicts = [classify(one) for one in self._failed]
            raise TransactionTrouble(next((one for one in verdicts if one.action == "refused"), verdicts[0]))
        if time.monotonic() > deadline:
            raise TransactionTrouble(classify(Failure("_TIMED_OUT", "the brokers did not take the records in time")))

    def _again(self, call: Callable[[], None]) -> None:
        """Make a call again as long as its errors pass."""
        from confluent_kafka import KafkaException

        end = time.monotonic() + _PATIENCE
        while True:
            try:
                call()
                return
            except KafkaException as error:
                failure = failure_of(error)
                goes_on = failure.retriable and failure.name == "_TIMED_OUT"
                if not (goes_on or classify(failure).action == "retry"):
                    raise
                self._producer.poll(0)  # what the client has to tell is told here
                if time.monotonic() >= end or any(classify(one).action == "refused" for one in self._told):
                    raise
                time.sleep(_RETRY)

    def _trouble(self, error: Any) -> TransactionTrouble:
        failure = failure_of(error)
        telling = [one for one in self._told if classify(one).action == "refused"]
        if failure.name in ("_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN") and telling:
            failure = telling[-1]
        return TransactionTrouble(classify(failure))
