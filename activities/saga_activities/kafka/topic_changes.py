"""Notices the changes of the topics that a producer writes to.

A Kafka client chooses the partition of a key by the number of partitions that it knows, and looks at that again every
five minutes. In between, if a topic gets more partitions or is created again, records of one key would go to different
partitions, or the client would wait for partitions that no longer exist.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError, TopicIdentities, TopicIdentity
from sagas.settings import KafkaSettings

log = logging.getLogger("saga.kafka")

_ANSWER_TIMEOUT = 2.0
"""Seconds for an answer on connections that were used before, which a firewall may have forgotten."""

_TIMEOUT = 10.0
"""Seconds for an answer on new connections, and until the brokers agree on the partitions of a topic."""

_RETRY_INTERVAL = 0.1

_WRITE_TIME = 0.01
"""Seconds for which records may be written after the request of a look. Too short for a topic to be deleted, created
again and written to, so it was the same one throughout if it is in the answer.
"""


class TopicChanges:
    """The changes of the topics of one producer; ``client`` is that of the library. All calls block.

    Raises KafkaOperationError and KafkaException.
    """

    def __init__(self, settings: KafkaSettings, client: Any) -> None:
        self._settings, self._client = settings, client
        self._cluster: KafkaAdmin | None = None
        self._seen: dict[str, TopicIdentity] = {}
        self._seen_at: dict[str, float] = {}
        self._used: Mapping[str, TopicIdentity] = {}
        self._look: Callable[[], TopicIdentities] | None = None
        self._look_began = 0.0

    def use(self, topics: Collection[str], max_age: float = 0.0) -> Mapping[str, str]:
        """Make the client choose among the present partitions of these topics.

        Topics that the brokers described less than ``max_age`` seconds ago are taken as they were: if they are others
        by now, :meth:`changed` says so. Returns those of the topics that cannot be used, with the reason.
        """
        oldest = time.monotonic() - max_age
        if all(topic in self._seen_at and self._seen_at[topic] > oldest for topic in topics):
            self._used = {topic: self._seen[topic] for topic in topics}
            return {}
        end = time.monotonic() + _TIMEOUT
        while True:
            self._used, unusable = self._identify(topics)
            outdated = [topic for topic, identity in self._used.items() if not self._refresh(topic, identity)]
            if not outdated:
                return unusable
            if time.monotonic() > end:
                raise KafkaOperationError(f"the brokers do not agree on the partitions of {', '.join(outdated)} yet")
            time.sleep(_RETRY_INTERVAL)

    def begin_look(self) -> None:
        """Ask for the topics in use, so that :meth:`changed` has the answer once their records are written."""
        if self._cluster is not None and self._used:
            self._look = self._cluster.begin_identify(self._used, _ANSWER_TIMEOUT)
            self._look_began = time.monotonic()

    def changed(self) -> list[str]:
        """The topics in use that have been deleted, created again or given other partitions since they were seen.

        It is called when their records are written. If that took long, the look that was begun before does not count:
        the records could be in a topic that was created after it.
        """
        look, self._look = self._look, None
        if look is not None and time.monotonic() - self._look_began < _WRITE_TIME:
            try:
                return self._compare(look()[0])
            except KafkaOperationError:
                self._cluster = None
        present, _ = self._identify(self._used)
        return self._compare(present)

    def noticed_changes(self) -> list[str]:
        """The topics in use that have changed, as far as the brokers say so at once: it waits for no new connection."""
        if self._cluster is None or not self._used:
            return []
        try:
            present, _ = self._cluster.identify(self._used, _ANSWER_TIMEOUT)
        except KafkaOperationError:
            self._cluster = None
            return []
        return self._compare(present)

    def end_use(self) -> None:
        """Forget the topics in use: nothing is written to them any more."""
        self._used, self._look = {}, None

    def _refresh(self, topic: str, identity: TopicIdentity) -> bool:
        """Make the client look at a topic that is new or has changed; returns whether it has the present partitions."""
        if self._seen.get(topic) == identity:
            self._seen_at[topic] = time.monotonic()
            return True
        if len(self._client.list_topics(topic, timeout=_TIMEOUT).topics[topic].partitions) != identity.partitions:
            return False
        _tell_change(topic, self._seen.get(topic), identity)
        self._seen[topic], self._seen_at[topic] = identity, time.monotonic()
        return True

    def _compare(self, present: Mapping[str, TopicIdentity]) -> list[str]:
        now = time.monotonic()
        changed: list[str] = []
        for topic, identity in self._used.items():
            if present.get(topic) == identity:
                self._seen_at[topic] = now
            else:
                self._seen_at.pop(topic, None)
                changed.append(topic)
        return changed

    def _identify(self, topics: Collection[str]) -> TopicIdentities:
        if not topics:
            return {}, {}
        if self._cluster is not None:
            try:
                return self._cluster.identify(topics, _ANSWER_TIMEOUT)
            except KafkaOperationError:
                self._cluster = None
        self._cluster = KafkaAdmin(self._settings, timeout=_TIMEOUT)
        return self._cluster.identify(topics, _TIMEOUT)


def _tell_change(topic: str, before: TopicIdentity | None, now: TopicIdentity) -> None:
    if before is None:
        return
    if before.id != now.id:
        log.warning("%s was deleted and created again; records go to its %d partitions", topic, now.partitions)
    else:
        log.info("%s has %d partitions now, it had %d", topic, now.partitions, before.partitions)
