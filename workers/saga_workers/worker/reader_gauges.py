"""The gauge of the readers that `saga trigger` has to run for a project, whether anything runs them or not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_workers.trigger.project_readers import TopicGroup, project_readers, reply_group
from sagas.errors import SagaError
from sagas.project import Project

log = logging.getLogger("saga.metrics")

_ANSWER_TIMEOUT = 5.0
"""Seconds for which a scrape waits for the outbox."""


class ReaderGauges:
    """A Prometheus collector of the readers by their groups and topics; ``refresh`` updates it.

    ``outbox``: gives the engine of the outbox, in which the group of the listener for replies has its id.
    """

    def __init__(self, project: Project, outbox: Callable[[], AsyncEngine]) -> None:
        self._project = project
        self._outbox = outbox
        self._outbox_id: str | None = None
        self._listeners: Sequence[TopicGroup] = ()

    async def refresh(self) -> None:
        """Look for the topics of replies. If the outbox has never answered, their listener has no sample."""
        kafka = self._project.settings.kafka
        if kafka.outbox is None:
            return
        from saga_workers.trigger.replies import read_outbox_id, reply_topics

        topics = reply_topics(self._project.definitions, kafka.prefix)
        try:
            if topics and self._outbox_id is None:
                async with asyncio.timeout(_ANSWER_TIMEOUT):
                    self._outbox_id = await read_outbox_id(self._outbox())
        except (SQLAlchemyError, SagaError, OSError) as error:
            log.debug("the outbox has no id: %s", error)
            return
        self._listeners = [reply_group(kafka.prefix, self._outbox_id or "", topic) for topic in topics]

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus collectors return them."""
        expected = GaugeMetricFamily(
            "saga_trigger_expected", "1 for each reader that saga trigger has to run.", labels=["group", "topic"]
        )
        for reader in (*project_readers(self._project), *self._listeners):
            expected.add_metric([reader.group, reader.topic], 1)
        yield expected
