"""Why a reader stands still although it runs: no broker answers, its topic is gone, or an ACL is missing."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError
from saga_activities.kafka.errors import classify_kafka_error
from saga_workers.runtime.logs import fields
from saga_workers.trigger.group_config import BrokerHealth
from sagas.settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException

log = logging.getLogger("saga.trigger")

LOG_AGAIN_AFTER = 60.0

_REQUEST_TIMEOUT = 5.0


class ReadProblem:
    """The present problem of one reader, for its readiness, metrics and log.

    Kafka's client reports a missing right once, and that it was granted by nothing but the next record. So while an
    idle reader has such a problem, ``look_again`` asks the brokers. Call everything but ``health`` in the thread of the
    client.
    """

    def __init__(self, settings: KafkaSettings, group: str, topic: str) -> None:
        self._settings = settings
        self._group, self._topic = group, topic
        self._brokers = BrokerHealth(group)
        self._reason: str | None = None
        self._is_visible_end = False
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
            self._reason, self._is_visible_end = error.message, False
        else:
            verdict = classify_kafka_error(error)
            # What else is wrong with a record or a partition ends with the next record.
            self._reason, self._is_visible_end = verdict.reason, verdict.action != "refused"
        now = time.monotonic()
        if now - self._logged_at.get(self._reason, -LOG_AGAIN_AFTER) >= LOG_AGAIN_AFTER:
            self._logged_at[self._reason] = now
            log.warning("topic cannot be read: %s", self._reason, extra=fields(group=self._group, topic=self._topic))

    def restarts(self, reason: str) -> None:
        """The reader begins again, which may end the problem."""
        self._reason, self._is_visible_end = reason, True

    def end(self) -> None:
        """Something was read."""
        self._reason = None

    def look_again(self, client: Any) -> None:
        """End the problem if the brokers let the reader read the topic, and use its group."""
        from confluent_kafka import KafkaException, TopicPartition

        if self._reason is None or self._is_visible_end:
            return
        try:
            if "READ" not in KafkaAdmin(self._settings, timeout=_REQUEST_TIMEOUT).authorized_operations(self._topic):
                return
            [place] = client.committed([TopicPartition(self._topic, 0)], _REQUEST_TIMEOUT)
        except (KafkaException, KafkaOperationError):
            return
        if place.error is None:
            self.end()
