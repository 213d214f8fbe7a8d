"""What a shard's producer can do about transactions of its own whose end the brokers have lost. Everything blocks."""

from __future__ import annotations

import time
from collections.abc import Collection

from saga_activities.kafka import lost_ends, reading
from saga_activities.kafka.topics import Cluster
from saga_activities.kafka.transactions import TransactionalProducer
from saga_workers.relay import progress
from sagas.errors import SagaError
from sagas.settings import KafkaSettings

_CLUSTER = 5.0


class Lost:
    """``topic`` is that of the progress records. Every method raises SagaError: it cannot be known."""

    def __init__(self, settings: KafkaSettings, producer: TransactionalProducer, topic: str, shard: int) -> None:
        self._settings, self._producer, self._topic, self._shard = settings, producer, topic, shard

    def batches(self) -> tuple[list[str], float]:
        """The ids of the events whose batch has a progress record that is not decided, and since when they may have
        been written (seconds since 1970)."""
        found = lost_ends.undecided(self._settings, self._topic).get(self._shard)
        ranges = {self._shard: (found.stable, found.high)} if found is not None else {}
        ids: list[str] = []
        moment = time.time()
        for message in reading.read_ranges(self._settings, self._topic, ranges, uncommitted=True):
            value = message.value()
            if value:
                ids += progress.decode(value).event_ids
                moment = min(moment, message.timestamp()[1] / 1000)
        return ids, moment - self._settings.transaction_timeout

    def visible(self, topics: Collection[str], ids: Collection[str], moment: float) -> set[str]:
        """Those of the events that readers see."""
        found: set[str] = set()
        stopped = self._producer.given_up
        for topic in self._there(topics):
            found |= lost_ends.visible(self._settings, topic, set(ids), moment, lambda: not stopped.is_set())
        if stopped.is_set():
            raise SagaError("the relay was told to stop before it knew what came of a transaction")
        return found

    def end(self, topics: Collection[str]) -> None:
        """End what is open of ours in these topics and in the shard's own partition. Raises TransactionTrouble too."""
        places = [
            (topic, partition)
            for topic in self._there(topics)
            for partition in lost_ends.undecided(self._settings, topic)
        ]
        self._producer.end_in([*places, (self._topic, self._shard)])

    def _there(self, topics: Collection[str]) -> list[str]:
        missing = Cluster(self._settings, patience=_CLUSTER).missing(topics)
        return [topic for topic in topics if topic not in missing]
