"""Writes records in transactions under a stable transactional id: a new producer with the id fences the previous one
and ends its open transaction.

All calls block and must come from one thread at a time. After any error that is not retriable the producer is
discarded: the next one's ``fence_and_open`` ends its transaction, and the outcome is then read from the topic, never
guessed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from saga_activities.kafka.admin import KafkaOperationError
from saga_activities.kafka.config import commit_may_be_resent, producer_config
from saga_activities.kafka.errors import ErrorVerdict, KafkaErrorInfo, classify_kafka_error, kafka_error_info
from saga_activities.kafka.record_codec import EncodedRecord
from saga_activities.kafka.topic_changes import TopicChanges
from sagas.settings import KafkaSettings

log = logging.getLogger("saga.kafka")

_CALL_TIMEOUT = 30.0
"""Seconds for one operation with its retries. After that, the next producer of the id ends the transaction."""

_CALL_SLICE = 2.0
"""Seconds of one call. librdkafka resumes when it is called again; ``cancelled`` is checked in between."""

_FLUSH_SLICE = 0.5
"""Seconds of a flush, after which the topics are looked at: a client waits long for partitions that are gone."""

_OFFSETS_TIMEOUT = 10.0
"""Seconds until the offsets of a group are accepted. An aborted transaction costs less than a longer wait."""

_RETRY_INTERVAL = 0.1

_KNOWN_TOPIC = "__transaction_state"
"""A topic of the brokers themselves; its metadata is a small answer, also to a user who may not read it."""

_UNCHECKED = 5.0
"""Seconds for which a producer may be idle and is used without a check: a firewall may forget its connections."""

_ANSWER_TIMEOUT = 2.0
"""Seconds in which a broker must answer an idle producer, or the producer is discarded."""

PartitionRecord = tuple[str, int, EncodedRecord]
"""Topic, partition (-1: chosen by the key) and the record."""


class KafkaTransactionError(Exception):
    """A transaction was not, or not certainly, committed. ``verdict`` says what that means.

    ``opaque`` is the caller's value for the affected record; ``single_record``: no other record is affected.
    """

    def __init__(self, verdict: ErrorVerdict, opaque: Any = None, *, single_record: bool = False) -> None:
        super().__init__(verdict.reason)
        self.verdict, self.opaque, self.single_record = verdict, opaque, single_record


class TransactionalProducer:
    """One producer: ``fence_and_open``; ``use_topics``, ``begin``, ``produce`` and ``commit`` for each transaction;
    ``close``.

    ``cancelled`` may be set from any thread to make a blocking call give up. Every method raises
    :class:`KafkaTransactionError`.
    """

    def __init__(self, settings: KafkaSettings, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.cancelled = threading.Event()
        self._settings = settings
        self._producer: Any = None
        self._topics: TopicChanges | None = None
        self._deadline = 0.0
        self._used_at = 0.0
        self._failed_deliveries: list[tuple[KafkaErrorInfo, Any]] = []
        self._client_errors: list[KafkaErrorInfo] = []

    def fence_and_open(self) -> TransactionalProducer:
        """Fence the previous producer of the id and end its transaction."""
        from confluent_kafka import Producer

        properties = producer_config(self._settings, transactional_id=self.transactional_id)
        with self._translate_errors():
            self._producer = Producer({**properties, "error_cb": self._on_error})
            self._retry(lambda: self._producer.init_transactions(_CALL_SLICE))
        self._topics = TopicChanges(self._settings, self._producer)
        self._used_at = time.monotonic()
        return self

    def use_topics(self, topics: Collection[str], max_age: float = 0.0) -> Mapping[str, str]:
        """Look at the topics to which the next transaction writes by key; returns those that cannot be used, and why.

        A key then has the partition that any other client chooses for it at present. If one of the topics is deleted,
        created again or gets more partitions before its records are written, ``commit`` raises. With ``max_age``, a
        look that is younger counts, also that of the commit before: then an earlier change is noticed by ``commit``.
        """
        assert self._topics is not None, "fence_and_open comes first"
        self._require_answer_if_idle()  # a new topic is looked at on the same connections, and for longer
        with self._translate_errors():
            return self._topics.use(topics, max_age)

    def begin(self, timeout: float) -> None:
        """Begin a transaction; the brokers have to accept all its records within ``timeout`` seconds."""
        self._require_answer_if_idle()
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
        """Enqueue one record. ``opaque`` identifies it in a KafkaTransactionError.

        Without ``confirm_delivery`` there is no delivery report: that is faster, but an error then does not name the
        record that caused it.
        """
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

    def produce_all(self, records: Iterable[tuple[str, EncodedRecord]]) -> None:
        """Enqueue records, each with its topic, without delivery reports: the fastest way for many of them."""
        from confluent_kafka import KafkaException

        produce = self._producer.produce
        for topic, (value, key, headers) in records:
            try:
                produce(topic, value, key, headers=headers if type(headers) is list else list(headers))
            except (BufferError, KafkaException):  # waits, or raises what produce() raises
                self.produce(topic, value, key, headers, confirm_delivery=False)

    def flush(self) -> None:
        """Wait until the brokers have all enqueued records."""
        assert self._topics is not None, "fence_and_open comes first"
        with self._translate_errors():
            while self._producer.flush(_FLUSH_SLICE):
                self._raise_if_failed()
                self._raise_if_changed(self._topics.noticed_changes())
            self._raise_if_failed()

    def send_offsets(self, offsets: list[Any], group: Any) -> None:
        """Make the offsets of a consumer group part of the transaction.

        This is the one call whose timeout librdkafka ignores (its issue 5456): after a restart of the broker it waits
        forever for the coordinator that it knew before (issue 5511). So a thread makes the call and is left behind,
        with its client, when the time is over; what it may still send is fenced by the next producer.
        """
        done: Future[None] = Future()

        def call() -> None:
            try:
                self._retry(lambda: self._producer.send_offsets_to_transaction(offsets, group, _CALL_SLICE))
                done.set_result(None)
            except BaseException as error:  # noqa: BLE001 - raised by result()
                done.set_exception(error)

        threading.Thread(target=call, name=f"offsets of {self.transactional_id}", daemon=True).start()
        with self._translate_errors():
            try:
                done.result(_OFFSETS_TIMEOUT)
            except TimeoutError:
                late = KafkaErrorInfo("_TIMED_OUT", f"the offsets were not accepted within {_OFFSETS_TIMEOUT:g} s")
                raise KafkaTransactionError(classify_kafka_error(late)) from None

    def commit(self) -> None:
        """Flush and commit. After an error the outcome is unknown, unless its verdict says otherwise.

        The look at the topics takes no time of its own: the brokers answer it while they take the records.
        """
        assert self._topics is not None, "fence_and_open comes first"
        with self._translate_errors():
            self._topics.begin_look()
        self.flush()
        with self._translate_errors():
            self._raise_if_changed(self._topics.changed())
        self._topics.end_use()
        began = time.monotonic()
        with self._translate_errors():
            self._retry(lambda: self._producer.commit_transaction(_CALL_SLICE))
        self._used_at = time.monotonic()
        if commit_may_be_resent(time.monotonic() - began):
            self.close()
            self.fence_and_open()

    def abort(self) -> None:
        """Abort the transaction."""
        with self._translate_errors():
            self._retry(lambda: self._producer.abort_transaction(_CALL_SLICE))

    def abort_in(self, partitions: Iterable[tuple[str, int]]) -> None:
        """End this producer's hanging transactions in these partitions (topic, number).

        An abort marker ends everything that its producer has open in a partition, so a transaction with one record for
        each partition is written and aborted; readers never see its records.
        """
        self.begin(self._settings.transaction_timeout / 2)
        for topic, partition in partitions:
            self.produce(topic, None, b"saga", partition=partition)
        self.flush()
        self.abort()

    def write(self, records: Iterable[PartitionRecord], topics: Collection[str] = ()) -> None:
        """Write records in one transaction: all of them become visible at once, or none.

        ``topics``: those of the records whose partition is chosen by the key.
        """
        for topic, reason in self.use_topics(topics).items():
            raise KafkaTransactionError(ErrorVerdict("refused", f"{topic}: {reason}", scope="topic"))
        self.begin(self._settings.transaction_timeout)
        for topic, partition, record in records:
            self.produce(topic, record.value, record.key, record.headers, partition=partition)
        self.commit()

    def close(self) -> None:
        """Abort the open transaction, if possible, and discard the producer.

        The library's own ``close`` is not used: it waits forever for a broker that is down.
        """
        from confluent_kafka import KafkaException

        producer, self._producer, self._topics = self._producer, None, None
        if producer is None:
            return
        producer.purge()
        try:
            producer.abort_transaction(_CALL_SLICE)
        except KafkaException as error:
            # Nothing was open, or Kafka is unreachable: then the next producer of the id ends the transaction.
            context = {"transactional_id": self.transactional_id}
            log.debug("transaction not aborted: %s", error, extra={"context": context})

    def _raise_if_changed(self, changed: Collection[str]) -> None:
        if changed:
            reason = f"{', '.join(changed)} was changed or created again while records were written to it"
            raise KafkaTransactionError(ErrorVerdict("abort", reason))

    def _require_answer_if_idle(self) -> None:
        """Raise an error for a connection that does not answer after a time without use.

        Not replaced here: the producer may belong to another process by now, which only its owner knows.
        """
        from confluent_kafka import KafkaException

        if time.monotonic() - self._used_at <= _UNCHECKED:
            return
        try:
            self._producer.list_topics(_KNOWN_TOPIC, timeout=_ANSWER_TIMEOUT)
        except KafkaException as error:
            silent = KafkaErrorInfo("_TIMED_OUT", "the brokers do not answer on idle connections")
            raise KafkaTransactionError(classify_kafka_error(silent)) from error
        self._used_at = time.monotonic()

    def _raise_if_failed(self) -> None:
        if self._failed_deliveries:
            # Most deliveries only fail with the transaction; the first refusal is the cause.
            verdicts = [(classify_kafka_error(failure), about) for failure, about in self._failed_deliveries]
            verdict, about = next((judged for judged in verdicts if judged[0].action == "refused"), verdicts[0])
            raise KafkaTransactionError(verdict, about)
        if time.monotonic() > self._deadline or self.cancelled.is_set():
            raise KafkaTransactionError(
                classify_kafka_error(KafkaErrorInfo("_TIMED_OUT", "the brokers did not accept the records in time"))
            )

    def _on_delivery(self, opaque: Any, error: Any, _: Any) -> None:
        if error is not None:
            self._failed_deliveries.append((kafka_error_info(error), opaque))

    def _retry(self, call: Callable[[], None]) -> None:
        """Repeat a call as long as its errors are retriable, at most for ``_CALL_TIMEOUT``."""
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
                self._producer.poll(0)  # serves the client's callbacks
                if time.monotonic() >= end or self.cancelled.is_set() or self._refusals():
                    raise
                time.sleep(_RETRY_INTERVAL)

    def _on_error(self, error: Any) -> None:
        """The reason for a failed connection is only reported here; the waiting call just times out."""
        self._client_errors.append(kafka_error_info(error))
        log.debug("client error: %s", error, extra={"context": {"transactional_id": self.transactional_id}})

    def _refusals(self) -> list[KafkaErrorInfo]:
        """Refusals among the client's errors: librdkafka itself retries forever with credentials that are refused."""
        return [
            client_error
            for client_error in self._client_errors
            if classify_kafka_error(client_error).action == "refused"
        ]

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
        except KafkaOperationError as error:
            failure = error.error_info or KafkaErrorInfo("_FAIL", error.message)
            raise KafkaTransactionError(classify_kafka_error(failure)) from error
        except SystemError as error:
            # The library raises this, without a reason, when the producer is fenced during a flush: outcome unknown.
            verdicts = [
                classify_kafka_error(client_error)
                for client_error in (*self._client_errors, *(failure for failure, _ in self._failed_deliveries))
            ]
            unknown = classify_kafka_error(KafkaErrorInfo("_FAIL", str(error)))
            raise KafkaTransactionError(next((verdict for verdict in verdicts if verdict.fenced), unknown)) from error
