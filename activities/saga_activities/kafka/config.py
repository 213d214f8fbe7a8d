"""The configuration of all Kafka clients.

librdkafka's defaults differ from those of the Java client: idempotence is off and offsets are committed automatically.
So everything a guarantee depends on is set here; the settings cannot weaken it (:mod:`sagas.settings.kafka`).
"""

from __future__ import annotations

import importlib.util
import logging
import re
import time
from typing import Any

from sagas.errors import Unequipped
from sagas.settings import KafkaSettings

LIBRDKAFKA_LOG = logging.getLogger("saga.kafka")
"""The logger of librdkafka."""

_REPEAT_INTERVAL = 30.0
_NUMBERS = re.compile(r"\d+")


class _RepeatFilter(logging.Filter):
    """Passes one line of a kind every 30 s: librdkafka logs each attempt to connect, ten per second."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind, now = _NUMBERS.sub("", record.getMessage()), time.monotonic()
        if now - self._last.get(kind, -_REPEAT_INTERVAL) < _REPEAT_INTERVAL:
            return False
        self._last = {earlier: since for earlier, since in self._last.items() if now - since < _REPEAT_INTERVAL} | {
            kind: now
        }
        return True


LIBRDKAFKA_LOG.addFilter(_RepeatFilter())

RESEND_AFTER = 1.0
"""Seconds after which librdkafka silently resends a request whose connection was lost."""

_NO_RESEND_BELOW = 0.75 * RESEND_AFTER
"""librdkafka's backoff has a jitter of 20 %."""

_CONSUMER_ANSWER_TIMEOUT_MS = 5_000
"""Milliseconds until a connection of a consumer, which always has a request open, counts as lost."""

_FRAMING_BYTES = 2_048
"""Bytes that the formats of batch and record add to key, value and headers."""

ClientProperties = dict[str, Any]


def require_client() -> None:
    """Raises UsageError if the package confluent-kafka is not installed."""
    if importlib.util.find_spec("confluent_kafka") is None:
        raise Unequipped(
            "Kafka needs the package confluent-kafka, which is not installed",
            help="pip install 'saga-orchestrator[kafka]'",
        )


def commit_may_be_resent(seconds: float) -> bool:
    """True if a commit that took so many seconds may have been sent twice.

    The delayed copy can still arrive and would end the *next* transaction of the same epoch: librdkafka's protocol
    version has nothing else to tell them apart. A new producer has a new epoch. (The anomaly is known from Jepsen's
    report on Kafka transactions.)
    """
    return seconds >= _NO_RESEND_BELOW


def producer_config(settings: KafkaSettings, *, transactional_id: str | None = None) -> ClientProperties:
    """An idempotent producer; with a transactional id also across restarts.

    Raises:
        UsageError: no address is configured, a secret is missing, or confluent-kafka is not installed.
    """
    config = _client_config(settings) | {
        "enable.idempotence": True,
        "acks": "all",
        "message.max.bytes": settings.max_message_bytes + _FRAMING_BYTES,
        # A missing topic is reported after this time instead of 30 s.
        "topic.metadata.propagation.max.ms": 5_000,
    }
    # The same partition for a key as in Java clients.
    config.setdefault("partitioner", "murmur2_random")
    if transactional_id is not None:
        config["transactional.id"] = transactional_id
        # Records wait for the end of their transaction, so few large batches reach the broker, each compressed: it then
        # works half as long for each. Every transaction is flushed, which ends the wait.
        config.setdefault("linger.ms", 100)
        config.setdefault("compression.type", "lz4")
        config["transaction.timeout.ms"] = round(settings.transaction_timeout * 1000)
        config["retry.backoff.ms"] = config["retry.backoff.max.ms"] = round(RESEND_AFTER * 1000)
    return config


def consumer_config(settings: KafkaSettings, group: str) -> ClientProperties:
    """A read_committed consumer that starts at the earliest offset and commits offsets only explicitly.

    Raises:
        UsageError: as for a producer.
    """
    return (
        {"socket.timeout.ms": _CONSUMER_ANSWER_TIMEOUT_MS}
        | _client_config(settings)
        | {
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )


def admin_config(settings: KafkaSettings) -> ClientProperties:
    """An admin client. Raises UsageError, as for a producer."""
    return _client_config(settings)


def _client_config(settings: KafkaSettings) -> ClientProperties:
    require_client()
    return {
        **settings.client_properties(),
        "bootstrap.servers": settings.servers,
        "client.id": settings.prefix,
        "logger": LIBRDKAFKA_LOG,
    }
