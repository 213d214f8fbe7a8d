"""Dead letters: messages nobody could use, kept with the reason beside the topic they came from."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

from activities.kafka.config import producer_config
from activities.kafka.errors import classify
from activities.kafka.topics import Cluster, KafkaProblem
from sagas.settings import KafkaSettings
from workers.kafka_use import DEAD_LETTERS
from workers.trigger.metrics import TriggerMetrics
from workers.trigger.records import Record
from workers.trigger.trying import Down, tried

log = logging.getLogger("saga.trigger")

LONGEST_REASON = 1_000
_PATIENCE = 30.0


def dead_letter(record: Record, group: str, reason: str, *, omit: bool = False) -> dict[str, Any]:
    """What to produce for a record that is given up. ``omit`` leaves its value out: it is too large."""
    ours: list[tuple[str, str | bytes | None]] = [
        ("sagadlqreason", reason[:LONGEST_REASON]),
        ("sagadlqgroup", group),
        ("sagadlqtopic", record.topic),
        ("sagadlqpartition", str(record.partition)),
        ("sagadlqoffset", str(record.offset)),
        ("sagadlqtimestamp", str(record.timestamp)),
    ]
    if omit:
        ours.append(("sagadlqomitted", "size"))
    # A dead letter that was published again and died again tells where it died last.
    kept = [(name, value) for name, value in record.raw_headers if not name.startswith("sagadlq")]
    return {
        "topic": record.topic + DEAD_LETTERS,
        "key": record.key,
        "value": None if omit else record.value,
        "headers": [*kept, *ours],
    }


class DeadLetters:
    """Writes dead letters of all readers of one process; made once, closed with it."""

    def __init__(self, settings: KafkaSettings, metrics: TriggerMetrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._producer: Any = None
        self._known: set[str] = set()
        self._lock = threading.Lock()

    async def send(self, record: Record, group: str, reason: str, stop: asyncio.Event) -> None:
        """Return when the brokers have it. Raises Stopped when the process stops before that."""
        log.warning("%s gives up %s: %s", group, record.place, reason)

        async def attempt(_: int) -> None:
            await asyncio.to_thread(self._send, record, group, reason)

        await tried(f"the dead letter of {record.place}", attempt, stop=stop, max_attempts=1_000_000)
        self._metrics.dead(group, record.topic)

    def topic_for(self, topic: str) -> str:
        """The topic of the dead letters of ``topic``, made if it is missing. Raises KafkaProblem."""
        found = topic + DEAD_LETTERS
        if found not in self._known:
            Cluster(self._settings).ensure(found, 1)
            self._known.add(found)
        return found

    def _send(self, record: Record, group: str, reason: str) -> None:
        from confluent_kafka import KafkaException, Producer

        with self._lock:
            try:
                self.topic_for(record.topic)
                if self._producer is None:
                    self._producer = Producer(producer_config(self._settings))
                error = self._produce(dead_letter(record, group, reason))
                if error is not None and classify(error).scope == "event":
                    error = self._produce(dead_letter(record, group, reason, omit=True))
            except (KafkaException, KafkaProblem) as trouble:
                self._producer = None  # nobody knows what it still has in flight
                raise Down(trouble.message if isinstance(trouble, KafkaProblem) else classify(trouble).reason) from None
            if error is not None:
                self._producer = None
                raise Down(classify(error).reason)

    def _produce(self, letter: dict[str, Any]) -> Any:
        """The broker's error, None when it has the letter."""
        from confluent_kafka import KafkaException

        told: list[Any] = []
        try:
            self._producer.produce(**letter, on_delivery=lambda error, _: told.append(error))
        except KafkaException as trouble:
            return trouble.args[0]
        self._producer.flush(_PATIENCE)
        if not told:
            raise Down("the brokers do not answer")
        return told[0]
