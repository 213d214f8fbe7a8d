"""Whether a reader reaches Kafka. Its client tries for ever and in silence; people and orchestrators want to know."""

from __future__ import annotations

import json
import logging
from typing import Any

log = logging.getLogger("saga.trigger")

EVERY = 5.0
"""Seconds between two looks."""


class Reach:
    """What one client of Kafka says about its connections, told in the thread that polls."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._away = False

    def properties(self) -> dict[str, Any]:
        """For the client's configuration."""
        return {"statistics.interval.ms": round(EVERY * 1000), "stats_cb": self._told}

    def health(self) -> str | None:
        """None, or why nothing can be read at the moment."""
        return f"{self._group}: no broker of Kafka can be reached" if self._away else None

    def _told(self, statistics: str) -> None:
        brokers = json.loads(statistics).get("brokers", {}).values()
        away = not any(one.get("state") == "UP" for one in brokers)
        if away and not self._away:
            log.warning("%s: no broker of Kafka can be reached; messages wait", self._group)
        if self._away and not away:
            log.info("%s reads again", self._group)
        self._away = away
