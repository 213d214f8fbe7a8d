"""Dead letters: messages nobody could use, kept with the reason beside the topic they came from."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from saga_activities.kafka.config import producer_config
from saga_activities.kafka.errors import classify
from saga_activities.kafka.topics import Cluster, KafkaProblem
from saga_workers.kafka_use import DEAD_LETTERS
from saga_workers.trigger.metrics import TriggerMetrics
from saga_workers.trigger.records import Record
from saga_workers.trigger.trying import Down, tried
from sagas.settings import KafkaSettings

log = logging.getLogger("saga.trigger")

LONGEST_REASON = 1_000
_PATIENCE = 30.0
_SLICE = 0.5
"""Seconds of one look at the brokers' answer; in between the process may be told to stop."""


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
    """Writes dead letters of all readers of one process, one after the other; made once, closed with it.

    The thread is its own: brokers that are down hold up dead letters, and nothing else that needs a thread.
    """

    def __init__(self, settings: KafkaSettings, metrics: TriggerMetrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._producer: Any = None
        self._known: set[str] = set()
        self._thread = ThreadPoolExecutor(1, "dead-letters")

    async def send(self, record: Record, group: str, reason: str, stop: asyncio.Event) -> None:
        """Return when the brokers have it. Raises Stopped when the process stops before that."""
        log.warning("%s gives up %s: %s", group, record.place, reason)

        async def attempt(_: int) -> None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._send, record, group, reason, stop)

        await tried(f"the dead letter of {record.place}", attempt, stop=stop, max_attempts=1_000_000)
        self._metrics.dead(group, record.topic)

    def topic_for(self, topic: str) -> str:
        """The topic of the dead letters of ``topic``, made if it is missing. Raises KafkaProblem."""
        found = topic + DEAD_LETTERS
        if found not in self._known:
            Cluster(self._settings).ensure(found, 1)
            self._known.add(found)
        return found

    def close(self) -> None:
        """Let the thread go. What is on its way is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _send(self, record: Record, group: str, reason: str, stop: asyncio.Event) -> None:
        from confluent_kafka import KafkaException, Producer

        try:
            self.topic_for(record.topic)
            if self._producer is None:
                self._producer = Producer(producer_config(self._settings))
            error = self._produce(dead_letter(record, group, reason), stop)
            if error is not None and classify(error).scope == "event":
                error = self._produce(dead_letter(record, group, reason, omit=True), stop)
        except (KafkaException, KafkaProblem) as trouble:
            self._producer = None  # nobody knows what it still has in flight
            raise Down(trouble.message if isinstance(trouble, KafkaProblem) else classify(trouble).reason) from None
        if error is not None:
            self._producer = None
            raise Down(classify(error).reason)

    def _produce(self, letter: dict[str, Any], stop: asyncio.Event) -> Any:
        """The broker's error, None when it has the letter. Raises Down: no answer in time, or told to stop."""
        from confluent_kafka import KafkaException

        told: list[Any] = []
        try:
            self._producer.produce(**letter, on_delivery=lambda error, _: told.append(error))
        except KafkaException as trouble:
            return trouble.args[0]
        end = time.monotonic() + _PATIENCE
        while not told and not stop.is_set() and time.monotonic() < end:
            self._producer.flush(_SLICE)
        if not told:
            self._producer = None  # it would still try to send this one
            raise Down("the brokers do not answer")
        return told[0]
