"""Metrics that are asked for when somebody scrapes: what waits in the outboxes, and what transactions hold back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from sqlalchemy.exc import SQLAlchemyError

from saga_activities.kafka.topics import Cluster
from saga_activities.outbox import HELD, NEW, REFUSED
from saga_workers.databases import database_says
from saga_workers.relay.lag import Lag, read_lag, topics_used
from saga_workers.relay.outbox import Outbox
from saga_workers.relay.publisher import progress_topic
from sagas.errors import SagaError

log = logging.getLogger("saga.relay")

PERIOD = 5.0
"""Seconds for which an answer is good enough."""

_PATIENCE = 5.0


class StandingOutboxes:
    """Gauges of all outboxes of a relay, the same from every relay. A Prometheus collector; ``refresh`` before."""

    def __init__(self, outboxes: Collection[Outbox]) -> None:
        self._outboxes = outboxes
        self._lags: dict[str, Lag] = {}
        self._held_back: dict[tuple[str, str], int] = {}
        self._asked = 0.0

    async def refresh(self) -> None:
        """Ask the databases and Kafka, unless they were just asked. Who does not answer is left out."""
        if time.monotonic() - self._asked < PERIOD:
            return
        self._asked = time.monotonic()
        await asyncio.gather(*(self._ask(outbox) for outbox in self._outboxes))

    async def _ask(self, outbox: Outbox) -> None:
        self._lags.pop(outbox.name, None)
        for key in [key for key in self._held_back if key[0] == outbox.name]:
            del self._held_back[key]
        try:
            async with asyncio.timeout(_PATIENCE):
                self._lags[outbox.name] = await read_lag(outbox.rows.engine)
                topics = await topics_used(outbox.rows.engine)
            for topic, offsets in (await held_back(outbox, topics)).items():
                self._held_back[outbox.name, topic] = offsets
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            log.debug("no gauges of %s: %s", outbox.name, database_says(error))
        except SagaError as error:
            log.debug("no gauges of %s: %s", outbox.name, error.message)

    def collect(self) -> Iterator[Metric]:
        """What Prometheus asks for."""
        oldest = GaugeMetricFamily(
            "saga_outbox_oldest_seconds", "How long the oldest event has waited to be published.", labels=["connection"]
        )
        events = GaugeMetricFamily(
            "saga_outbox_events", "Events that are not published, by status.", labels=["connection", "status"]
        )
        undecided = GaugeMetricFamily(
            "saga_relay_lso_lag", "Offsets held back by transactions that are open.", labels=["connection", "topic"]
        )
        for name, lag in self._lags.items():
            oldest.add_metric([name], lag.total(NEW).oldest)
            for status in (NEW, HELD, REFUSED):
                events.add_metric([name, status], lag.total(status).events)
        for (name, topic), offsets in self._held_back.items():
            undecided.add_metric([name, topic], offsets)
        yield from (oldest, events, undecided)


async def held_back(outbox: Outbox, topics: Collection[str]) -> Mapping[str, int]:
    """Topic → how far its last stable offsets are behind what is written: transactions are open there.

    Raises SagaError: Kafka does not answer.
    """

    def ask() -> dict[str, int]:
        cluster = Cluster(outbox.settings, patience=_PATIENCE)
        there = cluster.topics()
        asked = [*topics, progress_topic(outbox.settings, outbox.home.home)]
        return {
            topic: sum(one.undecided for one in cluster.offsets(topic).values()) for topic in asked if topic in there
        }

    return await asyncio.to_thread(ask)
