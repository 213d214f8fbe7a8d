"""Reachability of the brokers: the client retries forever without an error, but probes and logs must show it."""

from __future__ import annotations

import logging
from typing import Any

from saga_workers.runtime.logs import fields
from sagas.text.exact_json import decode_json

log = logging.getLogger("saga.trigger")

STATISTICS_INTERVAL = 5.0
"""Seconds between two statistics callbacks."""


class BrokerHealth:
    """Connection state of one Kafka client, from its statistics callback in the polling thread."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._unreachable = False

    def properties(self) -> dict[str, Any]:
        """Properties to add to the client's configuration."""
        return {"statistics.interval.ms": round(STATISTICS_INTERVAL * 1000), "stats_cb": self._on_statistics}

    def health(self) -> str | None:
        """Why nothing can be read at present; None if it can."""
        return f"{self._group}: no Kafka broker can be reached" if self._unreachable else None

    def _on_statistics(self, statistics: str) -> None:
        brokers = decode_json(statistics).get("brokers", {}).values()
        away = not any(broker.get("state") == "UP" for broker in brokers)
        if away and not self._unreachable:
            log.warning("no Kafka broker can be reached, messages wait", extra=fields(group=self._group))
        if self._unreachable and not away:
            log.info("Kafka brokers can be reached again", extra=fields(group=self._group))
        self._unreachable = away
