"""Why a reader stands still although it runs: no broker answers, its topic is gone, or an ACL is missing."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError, PartitionOffsets
from saga_activities.kafka.errors import classify_kafka_error
from saga_workers.runtime.logs import fields
from saga_workers.trigger.broker_health import BrokerHealth
from sagas.settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException

log = logging.getLogger("saga.trigger")

LOG_AGAIN_AFTER = 60.0

_REQUEST_TIMEOUT = 5.0


class ReadProblem:
    """The present problem of one reader, for its readiness, metrics and log.

    Kafka's client reports a problem once, perhaps when it has already ended, and its end only by the next record. So
    while an idle reader has a problem, ``look_again`` asks the brokers. Call everything but ``health`` in the thread of
    the client.
    """

    def __init__(self, settings: KafkaSettings, group: str, topic: str) -> None:
        self._settings = settings
        self._group, self._topic = group, topic
        self._brokers = BrokerHealth(group)
        self._reason: str | None = None
        self._is_refusal = False
        self._logged_at: dict[str, float] = {}

    def properties(self) -> dict[str, Any]:
        """Properties to add to the client's configuration."""
        return self._brokers.properties()

    def health(self) -> str | None:
        """Why nothing can be read at present; None if it can."""
        reason = self._reason
        return self._brokers.health() or (reason and f"{self._group} stands still at {self._topic}: {reason}")

    def note(self, error: KafkaError | KafkaException | KafkaOperationError) -> None:
        """The topic cannot be read; logged once a minute."""
        if isinstance(error, KafkaOperationError):
            self._reason, self._is_refusal = error.message, True
        else:
            verdict = classify_kafka_error(error)
            self._reason, self._is_refusal = verdict.reason, verdict.action == "refused"
        now = time.monotonic()
        if now - self._logged_at.get(self._reason, -LOG_AGAIN_AFTER) >= LOG_AGAIN_AFTER:
            self._logged_at[self._reason] = now
            log.warning("topic cannot be read: %s", self._reason, extra=fields(group=self._group, topic=self._topic))

    def restarts(self, reason: str) -> None:
        """The reader begins again, which may end the problem."""
        self._reason, self._is_refusal = reason, False

    def end(self) -> None:
        """Something was read."""
        self._reason = None

    def look_again(self, client: Any, positions: Mapping[int, int | None]) -> None:
        """End the problem if the brokers let the reader read the topic, use its group, and have nothing that it has not
        read. ``positions``: those of its partitions, None where it is not known; none if other members have them.
        """
        from confluent_kafka import KafkaException, TopicPartition

        if self._reason is None:
            return
        cluster = KafkaAdmin(self._settings, timeout=_REQUEST_TIMEOUT)
        try:
            if "READ" not in cluster.authorized_operations(self._topic):
                return
            [place] = client.committed([TopicPartition(self._topic, 0)], _REQUEST_TIMEOUT)
            if place.error is None and (self._is_refusal or not _is_behind(cluster.offsets(self._topic), positions)):
                self.end()
        except (KafkaException, KafkaOperationError):
            return


def _is_behind(ends: Mapping[int, PartitionOffsets], positions: Mapping[int, int | None]) -> bool:
    return any(
        position is None or partition not in ends or position < ends[partition].last_stable
        for partition, position in positions.items()
    )
