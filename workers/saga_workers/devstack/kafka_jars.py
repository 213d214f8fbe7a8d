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

cache_folder = KAFKA_JARS.folder
fetch_jars = KAFKA_JARS.fetch
find_java = KAFKA_JARS.find_java
locked_jars = KAFKA_JARS.jars

__all__ = ["KAFKA_JARS", "KafkaUnavailableError", "cache_folder", "fetch_jars", "find_java", "locked_jars"]
