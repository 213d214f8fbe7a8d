"""The outbox side of a reconciliation: topics are read after the outbox, so what is news there is asked for again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from saga_activities.guard.tables_messaging import outbox
from saga_activities.outbox import NEW, PUBLISHED
from saga_spark.reconcile.extract import Scope
from saga_spark.reconcile.findings import Finding
from saga_workers.databases import open_engine
from sagas.settings import Settings

if TYPE_CHECKING:
    from saga_spark.reconcile.topics import Read

_IDS = 500


def read_topics(settings: Settings, folder: Path, scope: Scope, began: float) -> Read | None:
    """Read the topics of the outboxes into the folder; None: there is no Kafka, or no event for it. Blocks. Raises
    SagaError: Kafka cannot be asked."""
    if settings.kafka.bootstrap_servers is None:
        return None
    from saga_spark.reconcile import topics

    names = [one.name for one in settings.sql_connections()]
    return topics.read_topics(settings.kafka, folder, scope, began, names)


async def published_meanwhile(settings: Settings, findings: Sequence[Finding]) -> list[Finding]:
    """Those events that nobody had published when the outbox was read, and that it has as published by now."""
    asked: dict[str, list[Finding]] = {}
    for one in findings:
        if one.kind == "event_unclaimed" and one.row and one.place:
            asked.setdefault(one.place.partition(".")[0], []).append(one)
    gone: list[Finding] = []
    for name, some in asked.items():
        engine = open_engine(settings.connection(name))
        try:
            known = await _published(engine, [(one.row or {})["event_id"] for one in some])
        finally:
            await engine.dispose()
        gone += [one for one in some if (one.row or {})["event_id"] in known]
    return gone


async def _published(engine: Any, event_ids: Sequence[str]) -> set[str]:
    found: set[str] = set()
    async with engine.connect() as connection:
        for at in range(0, len(event_ids), _IDS):
            query = sa.select(outbox.c.event_id).where(
                outbox.c.event_id.in_(event_ids[at : at + _IDS]), outbox.c.status.in_((NEW, PUBLISHED))
            )
            found |= set((await connection.execute(query)).scalars())
    return found
