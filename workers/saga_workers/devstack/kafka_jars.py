"""The jars of the embedded Kafka."""

from __future__ import annotations

from pathlib import Path

from saga_workers.devstack.locked_jars import LockedJars
from sagas.errors import SagaError


class KafkaUnavailableError(SagaError):
    """The embedded Kafka is not available on this machine."""


KAFKA_JARS = LockedJars(
    Path(__file__).with_name("kafka.lock"), "kafka", "the embedded Kafka", "44 MB", KafkaUnavailableError
)
