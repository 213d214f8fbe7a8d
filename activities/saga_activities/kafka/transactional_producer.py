"""Write records in transactions under a stable id: whoever comes later with the same id ends what is open, and fences
whoever had it before.

Everything blocks; one thread at a time calls. After any error but a passing one the producer is thrown away: the next
one's ``open`` ends what this one began, and what came of it is then read, never guessed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from saga_activities.kafka.config import commit_may_be_resent, producer_config
from saga_activities.kafka.errors import ErrorVerdict, KafkaErrorInfo, classify_kafka_error, kafka_error_info
from saga_activities.kafka.record_codec import EncodedRecord
from sagas.settings import KafkaSettings

log = logging.getLogger("saga.kafka")

_CALL_TIMEOUT = 30.0
"""Seconds to begin, and to commit. After that the next producer of the id tells what came of it."""

_CALL_SLICE = 2.0
"""Seconds of one call. librdkafka goes on where it was when it is called again; in between we may be told to stop."""

_RETRY_INTERVAL = 0.1

PartitionRecord = tuple[str, int, EncodedRecord]
"""Topic, partition (-1: by the key) and what is written there."""


class KafkaTransactionError(Exception):
    """A transaction was not, or not certainly, committed. ``verdict`` says what that means.

    ``about`` is what the caller said of a record it was about; ``alone``: about that record and no other.
    """

    def __init__(self, verdict: ErrorVerdict, opaque: Any = None, *, single_record: bool = False) -> None:
        super().__init__(verdict.reason)
        self.verdict, self.opaque, self.single_record = verdict, opaque, single_record


class TransactionalProducer:
    """One life of a producer: ``open``, then ``begin``, ``produce`` and ``commit`` for each transaction, ``close``.

    Whoever waits for a call sets ``cancelled`` (from any thread) when the answer does not matter any more. Every method
    raises :class:`KafkaTransactionError`.
    """

    def __init__(self, settings: KafkaSettings, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.cancelled = threading.Event()
        self._settings = settings
        self._producer: Any = None
        self._deadline = 0.0
        self._failed_deliveries: list[tuple[KafkaErrorInfo, Any]] = []
        self._client_errors: list[KafkaErrorInfo] = []

    def open(self) -> TransactionalProducer:
        """Fence whoever had the id before, and end its transaction."""
        from confluent_kafka import Producer

        properties = producer_config(self._settings, transactional_id=self.transactional_id)
        with self._translate_errors():
            self._producer = Producer({**properties, "error_cb": self._on_error})
            self._retry(lambda: self._producer.init_transactions(_CALL_SLICE))
        return self

    def begin(self, timeout: float) -> None:
        """``patience``: seconds in which the brokers have to take all of it."""
        self._failed_deliveries.clear()
        self._deadline = time.monotonic() + timeout
        with self._translate_errors():
            self._producer.begin_transaction()

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, str | bytes | None]] = (),
        *,
        partition: int = -1,
        opaque: Any = None,
        confirm_delivery: bool = True,
    ) -> None:
        """Hand one record over. Without ``told`` its fate is not asked for: that is faster, and a transaction that
        fails does not say whose fault it was."""
        from confluent_kafka import KafkaException

        on_delivery = partial(self._on_delivery, opaque) if confirm_delivery else None
        while True:
            try:
                self._producer.produce(
                    topic, value, key, partition=partition, headers=list(headers), on_delivery=on_delivery
                )
            except BufferError:
                self._producer.poll(_RETRY_INTERVAL)
                self._raise_if_failed()
            except KafkaException as error:
                raise KafkaTransactionError(classify_kafka_error(error), opaque, single_record=True) from error
            else:
                return

    def flush(self) -> None:
        """Wait until the brokers have all that was handed over."""
        with self._translate_errors():
            while self._producer.flush(_CALL_SLICE):
                self._raise_if_failed()
            self._raise_if_failed()

    def send_offsets(self, offsets: list[Any], group: Any) -> None:
        """The positions of a consumer group become part of the transaction."""
        with self._translate_errors():
            self._retry(lambda: self._producer.send_offsets_to_transaction(offsets, group, _CALL_SLICE))

    def commit(self) -> None:
        """An error means that nobody knows, unless it says otherwise."""
        self.flush()
        began = time.monotonic()
        with self._translate_errors():
            self._retry(lambda: self._producer.commit_transaction(_CALL_SLICE))
        if commit_may_be_resent(time.monotonic() - began):
            self.close()
            self.open()

    def abort(self) -> None:
        """Take back what was handed over since ``begin``."""
        with self._translate_errors():
            self._retry(lambda: self._producer.abort_transaction(_CALL_SLICE))

    def abort_in(self, partitions: Iterable[tuple[str, int]]) -> None:
        """End what this producer has open in these partitions (topic, number) although Kafka holds it for ended.

        A transaction that is aborted ends in each of its partitions all that its producer had open there. Nobody sees
        what it writes.
        """
        self.begin(self._settings.transaction_timeout / 2)
        for topic, partition in partitions:
            self.produce(topic, None, b"saga", partition=partition)
        self.flush()
        self.abort()

    def write(self, records: Iterable[PartitionRecord]) -> None:
        """All of them become visible at once, or none."""
        self.begin(self._settings.transaction_timeout)
        for topic, partition, record in records:
            self.produce(topic, record.value, record.key, record.headers, partition=partition)
        self.commit()

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
            producer.abort_transaction(_CALL_SLICE)
        except KafkaException as error:
            # Nothing was open, or Kafka cannot be asked; in that case the next producer of the id ends it.
            log.debug("%s: not aborted: %s", self.transactional_id, error)

    def _raise_if_failed(self) -> None:
        if self._failed_deliveries:
            # What only fell with the transaction says nothing; the first that says more is the cause.
            found = [(classify_kafka_error(failure), about) for failure, about in self._failed_deliveries]
            verdict, about = next((one for one in found if one[0].action == "refused"), found[0])
            raise KafkaTransactionError(verdict, about)
        if time.monotonic() > self._deadline or self.cancelled.is_set():
            raise KafkaTransactionError(
                classify_kafka_error(KafkaErrorInfo("_TIMED_OUT", "the brokers did not take the records in time"))
            )

    def _on_delivery(self, opaque: Any, error: Any, _: Any) -> None:
        if error is not None:
            self._failed_deliveries.append((kafka_error_info(error), opaque))

    def _retry(self, call: Callable[[], None]) -> None:
        """Make a call again as long as its errors pass."""
        from confluent_kafka import KafkaException

        end = time.monotonic() + _CALL_TIMEOUT
        while True:
            try:
                call()
                return
            except KafkaException as error:
                failure = kafka_error_info(error)
                goes_on = failure.retriable and failure.name == "_TIMED_OUT"
                if not (goes_on or classify_kafka_error(failure).action == "retry"):
                    raise
                self._producer.poll(0)  # what the client has to tell is told here
                if time.monotonic() >= end or self.cancelled.is_set() or self._refusals():
                    raise
                time.sleep(_RETRY_INTERVAL)

    def _on_error(self, error: Any) -> None:
        """Why there is no connection is told here only; the call that waited says no more than "timed out"."""
        self._client_errors.append(kafka_error_info(error))
        log.debug("%s: %s", self.transactional_id, error)

    def _refusals(self) -> list[KafkaErrorInfo]:
        """The client itself tries for ever to connect with credentials that are refused."""
        return [one for one in self._client_errors if classify_kafka_error(one).action == "refused"]

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            failure, telling = kafka_error_info(error), self._refusals()
            if failure.name in ("_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN") and telling:
                failure = telling[-1]
            raise KafkaTransactionError(classify_kafka_error(failure)) from error
        except SystemError as error:
            # The library ends a flush so, without a reason, when the producer is fenced meanwhile. Nobody knows then.
            verdicts = [
                classify_kafka_error(one)
                for one in (*self._client_errors, *(failure for failure, _ in self._failed_deliveries))
            ]
            unknown = classify_kafka_error(KafkaErrorInfo("_FAIL", str(error)))
            raise KafkaTransactionError(next((one for one in verdicts if one.fenced), unknown)) from error
