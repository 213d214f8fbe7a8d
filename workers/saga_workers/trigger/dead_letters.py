"""Dead letters: messages that cannot be processed, kept with the reason in a topic next to their own.

:func:`saga_workers.trigger.retry.retry_until_done` decides that a message becomes one; a bridge, whose dead letters are
part of its transaction, does so itself (``bridge_function.py``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError
from saga_activities.kafka.config import producer_config
from saga_activities.kafka.dead_letter_headers import (
    GROUP_HEADER,
    OFFSET_HEADER,
    PARTITION_HEADER,
    REASON_HEADER,
    TIMESTAMP_HEADER,
    TOPIC_HEADER,
    TOPIC_ID_HEADER,
)
from saga_activities.kafka.errors import classify_kafka_error
from saga_activities.value_cipher import ValueCipher, encrypted_text
from saga_activities.value_places import dead_letter_place
from saga_workers.input_limits import MAX_KEPT_BYTES
from saga_workers.runtime.logs import fields
from saga_workers.topics.topic_inventory import DEAD_LETTER_SUFFIX
from saga_workers.trigger.consumed_record import ConsumedRecord
from saga_workers.trigger.retry import DependencyUnavailable, retry_until_done
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from saga_workers.trigger.written_dead_letters import WrittenDeadLetters
from sagas.settings import KafkaSettings
from sagas.settings.codec import load_codec_keys
from sagas.text.printable import printable_line

log = logging.getLogger("saga.trigger")

MAX_REASON_LENGTH = 1_000
_DELIVERY_TIMEOUT = 30.0
_LOOK_TIMEOUT = 5.0
_FLUSH_TIMEOUT = 0.5
"""Seconds to wait for the brokers at a time, so that a stop is noticed in between."""


def dead_letter(record: ConsumedRecord, group: str, reason: str, *, omit_value: bool = False) -> dict[str, Any]:
    """The record to produce for one that is given up.

    ``omit_value`` leaves its value out because the record is too large, and its key and headers if they are also large.
    """
    ours: list[tuple[str, str | bytes | None]] = [
        (REASON_HEADER, printable_line(reason[:MAX_REASON_LENGTH])),
        (GROUP_HEADER, group),
        (TOPIC_HEADER, record.topic),
        (TOPIC_ID_HEADER, record.topic_id),
        (PARTITION_HEADER, str(record.partition)),
        (OFFSET_HEADER, str(record.offset)),
        (TIMESTAMP_HEADER, str(record.timestamp)),
    ]
    if omit_value:
        ours.append(("sagadlqomitted", "size"))
    # A dead letter that was republished and failed again names only its last failure.
    kept = [(name, value) for name, value in record.raw_headers if not name.startswith("sagadlq")]
    key = record.key
    if omit_value and len(key or b"") + sum(len(name) + len(value or b"") for name, value in kept) > MAX_KEPT_BYTES:
        key, kept = None, []
    return {
        "topic": record.topic + DEAD_LETTER_SUFFIX,
        "key": key,
        "value": None if omit_value else record.value,
        "headers": [*kept, *ours],
    }


ENCRYPTED_HEADER = "sagadlqencrypted"
"""The id of the key with which key and value of a dead letter are encrypted."""


class DeadLetters:
    """Writes the dead letters of all readers of one process, one after the other; closed with the process.

    It has a thread of its own, so that brokers that are down block dead letters and nothing else.
    """

    def __init__(self, settings: KafkaSettings, metrics: TriggerMetrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._producer: Any = None
        self._existing_topics: set[str] = set()
        self._written = WrittenDeadLetters(settings)
        self._thread = ThreadPoolExecutor(1, "dead-letters")
        keys = load_codec_keys(settings.dead_letter_key, settings.root)
        self._cipher = ValueCipher(keys) if keys else None

    async def send(
        self, record: ConsumedRecord, group: str, reason: str, stop: asyncio.Event, *, any_prefix: bool = False
    ) -> None:
        """Send a dead letter unless the record has one of this group, and wait until the brokers have it.

        ``any_prefix``: or one of this reader under another prefix, which is known to have given the record up.
        Raises ProcessStopping if the process stops.
        """
        about = fields(group=group, record=record.position)
        own_name = group.removeprefix(self._settings.prefix)
        sent: list[bool] = []

        def is_writer(other: str) -> bool:
            return other == group or (any_prefix and other.endswith(own_name))

        async def attempt(_: int) -> None:
            send = partial(self._send, record, group, reason, stop, is_writer)
            sent.append(await asyncio.get_running_loop().run_in_executor(self._thread, send))

        await retry_until_done(attempt, about=about, stop=stop, max_attempts=1_000_000)
        if sent[-1]:
            log.warning("message moved to the dead letter topic: %s", reason, extra=about)
            self._metrics.dead(group, record.topic)
        else:
            log.info("message is in the dead letter topic already: %s", reason, extra=about)

    def is_written(self, record: ConsumedRecord, is_writer: Callable[[str], bool]) -> bool:
        """True if the record has a dead letter of a group for which ``is_writer`` holds.

        Blocks. Raises KafkaOperationError.
        """
        if record.taken_over is None:
            return False
        self.topic_for(record.topic)
        return self._written.has(record, is_writer)

    def topic_for(self, topic: str) -> str:
        """The dead letter topic of ``topic``, created if it is missing. Raises KafkaOperationError."""
        topic_name = topic + DEAD_LETTER_SUFFIX
        if topic_name not in self._existing_topics:
            KafkaAdmin(self._settings).ensure_topic(topic_name, 1)
            self._existing_topics.add(topic_name)
        return topic_name

    def encrypted(self, record: ConsumedRecord, letter: dict[str, Any]) -> dict[str, Any]:
        """The dead letter of a record as it is produced: its key and value encrypted, if the settings ask for that."""
        cipher = self._cipher
        if cipher is None:
            return letter
        values: dict[str, bytes] = {}
        for name in ("key", "value"):
            if letter[name] is not None:
                place = dead_letter_place(record.topic, record.partition, record.offset, name)
                values[name] = encrypted_text(cipher, place, letter[name]).encode()
        return {**letter, **values, "headers": [*letter["headers"], (ENCRYPTED_HEADER, cipher.key_id)]}

    def forget(self, topics: Iterable[str]) -> None:
        """Look again for these topics before the next dead letter: somebody has deleted them."""
        for topic in topics:
            self._existing_topics.discard(topic)
            self._written.forget(topic)

    def close(self) -> None:
        """Shut the thread down without waiting for dead letters in flight."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _send(
        self,
        record: ConsumedRecord,
        group: str,
        reason: str,
        stop: asyncio.Event,
        is_writer: Callable[[str], bool],
    ) -> bool:
        """Send a dead letter; False if the record has one already."""
        from confluent_kafka import KafkaException, Producer

        try:
            topic = self.topic_for(record.topic)
            if self.is_written(record, is_writer):
                return False
            if self._producer is None:
                self._producer = Producer(producer_config(self._settings))
            self._look_at_partitions(topic)
            error = self._produce(self.encrypted(record, dead_letter(record, group, reason)), stop)
            if error is not None and classify_kafka_error(error).scope == "event":
                letter = self.encrypted(record, dead_letter(record, group, reason, omit_value=True))
                error = self._produce(letter, stop)
        except (KafkaException, KafkaOperationError) as failure:
            self._producer = None  # what it still has in flight is unknown
            raise DependencyUnavailable(
                failure.message if isinstance(failure, KafkaOperationError) else classify_kafka_error(failure).reason
            ) from None
        if error is not None:
            self._producer = None
            verdict = classify_kafka_error(error)
            if verdict.scope == "topic":
                self.forget([topic])
            raise DependencyUnavailable(verdict.reason)
        self._written.add(record, group)
        return True

    def _look_at_partitions(self, topic: str) -> None:
        """Make the producer choose among the present partitions of the topic; by itself it looks every five minutes.

        Raises KafkaException, DependencyUnavailable.
        """
        error = self._producer.list_topics(topic, timeout=_LOOK_TIMEOUT).topics[topic].error
        if error is not None:
            self.forget([topic])
            raise DependencyUnavailable(classify_kafka_error(error).reason)

    def _produce(self, letter: dict[str, Any], stop: asyncio.Event) -> Any:
        """The broker's error, or None if it has the dead letter. Raises DependencyUnavailable on timeout or stop."""
        from confluent_kafka import KafkaException

        delivered: list[Any] = []
        try:
            self._producer.produce(**letter, on_delivery=lambda error, _: delivered.append(error))
        except KafkaException as failure:
            return failure.args[0]
        end = time.monotonic() + _DELIVERY_TIMEOUT
        while not delivered and not stop.is_set() and time.monotonic() < end:
            self._producer.flush(_FLUSH_TIMEOUT)
        if not delivered:
            self._producer = None  # it would still try to send this one
            raise DependencyUnavailable("the brokers do not answer")
        return delivered[0]
