"""Topics that cannot be used at the moment: left out of the scan, so that they hold up nobody, and tried again."""

from __future__ import annotations

import time
from dataclasses import dataclass

FIRST, LONGEST = 2.0, 30.0
"""Seconds until a topic is tried again: twice as long after each vain try."""


@dataclass(slots=True)
class _Topic:
    reason: str
    pause: float
    again_at: float


class LeftOut:
    """The topics one outbox cannot publish to, and why."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}

    def add(self, topic: str, reason: str) -> bool:
        """Leave a topic out for a while; True if it is new, or has a new reason."""
        known = self._topics.get(topic)
        pause = FIRST if known is None else min(LONGEST, known.pause * 2)
        self._topics[topic] = _Topic(reason, pause, time.monotonic() + pause)
        return known is None or known.reason != reason

    def worked(self, topic: str) -> bool:
        """Events of it were published; True if it was left out before."""
        return self._topics.pop(topic, None) is not None

    def now(self) -> set[str]:
        """The topics to leave out of a scan."""
        moment = time.monotonic()
        return {name for name, topic in self._topics.items() if topic.again_at > moment}

    def reasons(self) -> dict[str, str]:
        """Every topic that did not work when it was tried last."""
        return {name: topic.reason for name, topic in self._topics.items()}
