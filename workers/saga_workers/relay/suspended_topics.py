"""Topics that an outbox cannot publish to at present."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace

from saga_activities.concurrency import Backoff

_TOPIC_BACKOFF = Backoff(2.0, 30.0)
"""Seconds until a suspended topic is retried."""


class SuspendedTopics:
    """Topics that one outbox cannot publish to at present, and why.

    They are left out of the scan, so that they do not block other topics, and retried after a backoff.
    """

    def __init__(self) -> None:
        self._topics: dict[str, _SuspendedTopic] = {}

    def suspend(self, topic: str, reason: str) -> bool:
        """Leave a topic out until its backoff is over; True if it was not suspended before, or for another reason.

        All shards that meet one failure suspend the topic; it counts once.
        """
        before, now = self._topics.get(topic), time.monotonic()
        if before is not None and before.retry_at > now:
            self._topics[topic] = replace(before, reason=reason)
        else:
            failures = 0 if before is None else before.failures + 1
            self._topics[topic] = _SuspendedTopic(reason, failures, now + _TOPIC_BACKOFF.delay(failures))
        return before is None or before.reason != reason

    def resume(self, topic: str) -> bool:
        """Forget a topic after events were published to it; True if it was suspended before."""
        return self._topics.pop(topic, None) is not None

    def suspended(self) -> set[str]:
        """The topics to leave out of a scan."""
        moment = time.monotonic()
        return {name for name, topic in self._topics.items() if topic.retry_at > moment}

    def next_retry(self, topics: Collection[str]) -> float | None:
        """Seconds until the first of these topics is retried; None if there is none."""
        moments = (self._topics[name].retry_at if name in self._topics else 0.0 for name in topics)
        first = min(moments, default=None)
        return None if first is None else max(0.0, first - time.monotonic())

    def reasons(self) -> dict[str, str]:
        """Each topic whose last attempt failed, and the reason."""
        return {name: topic.reason for name, topic in self._topics.items()}


@dataclass(slots=True)
class _SuspendedTopic:
    reason: str
    failures: int
    retry_at: float
