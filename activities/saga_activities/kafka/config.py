"""The one place that says how clients of Kafka are configured.

librdkafka's own defaults are not those of the Java client: idempotence is off and offsets commit themselves. So all
that a guarantee rests on is said here; the settings cannot weaken it (:mod:`sagas.settings.kafka`).
"""

from __future__ import annotations

import importlib.util
import logging
import re
import time
from typing import Any

from sagas.errors import UsageError
from sagas.settings import KafkaSettings

LIBRDKAFKA_LOG = logging.getLogger("saga.kafka")
"""What librdkafka logs goes here."""

_REPEAT_INTERVAL = 30.0
_NUMBERS = re.compile(r"\d+")


class _RepeatFilter(logging.Filter):
    """One line of a kind in half a minute: the library repeats itself at each attempt to connect, ten a second."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind, now = _NUMBERS.sub("", record.getMessage()), time.monotonic()
        if now - self._last.get(kind, -_REPEAT_INTERVAL) < _REPEAT_INTERVAL:
            return False
        self._last = {one: since for one, since in self._last.items() if now - since < _REPEAT_INTERVAL} | {kind: now}
        return True


LIBRDKAFKA_LOG.addFilter(_RepeatFilter())

RESEND_AFTER = 1.0
"""Seconds after which librdkafka sends a request again, by itself and in silence, when its connection broke."""

_NO_RESEND_BELOW = 0.75 * RESEND_AFTER
"""Its pause varies by a fifth."""

_FRAMING_BYTES = 2_048
"""Bytes that a batch and a record add to key, value and headers."""

ClientProperties = dict[str, Any]


def require_client() -> None:
    """Raises UsageError: the package confluent-kafka is not installed."""
    if importlib.util.find_spec("confluent_kafka") is None:
        raise UsageError(
            "Kafka needs the package confluent-kafka, which is not installed.",
            help="pip install 'saga-orchestrator[kafka]'",
        )


def commit_may_be_resent(seconds: float) -> bool:
    """True when a commit that took so many seconds may have been sent twice.

    The copy that was lost on the way can still arrive, and would end the *next* transaction of the same epoch: in the
    protocol that librdkafka speaks nothing else tells them apart. A new producer has a new epoch. (The anomaly is
    known from Jepsen's report on Kafka transactions.)
    """
    return seconds >= _NO_RESEND_BELOW


def producer_config(settings: KafkaSettings, *, transactional_id: str | None = None) -> ClientProperties:
    """A producer that neither loses nor doubles within its life; with an id also across lives, by transactions.

    Raises:
        UsageError: no address is known, a secret is missing, or confluent-kafka is not installed.
    """
    config = _client_config(settings) | {
        "enable.idempotence": True,
        "acks": "all",
        "message.max.bytes": settings.max_message_bytes + _FRAMING_BYTES,
        # A topic that is not there is told after this, and not after half a minute.
        "topic.metadata.propagation.max.ms": 5_000,
    }
    # The partition of a key is the one that Java clients choose.
    config.setdefault("partitioner", "murmur2_random")
    if transactional_id is not None:
        config["transactional.id"] = transactional_id
        config["transaction.timeout.ms"] = round(settings.transaction_timeout * 1000)
        config["retry.backoff.ms"] = config["retry.backoff.max.ms"] = round(RESEND_AFTER * 1000)
    return config


def consumer_config(settings: KafkaSettings, group: str) -> ClientProperties:
    """A consumer that sees committed events only, from the first one on, and moves its offset only when told.

    Raises:
        UsageError: as for a producer.
    """
    return _client_config(settings) | {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }


def admin_config(settings: KafkaSettings) -> ClientProperties:
    """Raises UsageError: as for a producer."""
    return _client_config(settings)


def _client_config(settings: KafkaSettings) -> ClientProperties:
    require_client()
    return {
        **settings.client_properties(),
        "bootstrap.servers": settings.servers,
        "client.id": settings.prefix,
        "logger": LIBRDKAFKA_LOG,
    }
