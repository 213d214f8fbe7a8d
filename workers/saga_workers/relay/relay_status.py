"""`saga relay --status` and the relay's gauges: who publishes, what waits, and what open transactions hold back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.stored_values import stored_values
from saga_activities.guard.tables import outbox_table
from saga_activities.guard.unreadable_rows import UnreadableRow
from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError
from saga_activities.messaging.outbox import HELD, NEW, REFUSED, decrypted_event
from saga_workers.relay.outbox import Outbox
from saga_workers.relay.outbox_table import OutboxLag, OutboxTable, has_outbox, read_lag, topics_used
from saga_workers.relay.publisher import progress_topic, transactional_id
from saga_workers.relay.undecided_events import count_unanswered, list_undecided
from saga_workers.runtime.database_access import driver_message
from saga_workers.runtime.databases import open_databases
from saga_workers.runtime.lease import Leases
from saga_workers.runtime.logs import fields
from saga_workers.runtime.metrics import Refreshed
from sagas.errors import SagaError
from sagas.settings import KafkaSettings, Settings

_STATUS_TIMEOUT = 15.0


async def relay_status(settings: Settings, connection: str | None = None) -> dict[str, Any]:
    """The status of every outbox. If its database does not answer, it has only an ``error`` message.

    Raises UsageError if the project has no database, or none of that name.
    """
    databases = open_databases(settings, connection, 2)
    try:
        outboxes = await asyncio.gather(
            *(_outbox_status(settings.kafka, name, databases.engine(name)) for name in databases.names())
        )
    finally:
        await databases.close()
    return {"outboxes": [outbox for outbox in outboxes if outbox is not None]}


async def _outbox_status(kafka: KafkaSettings, name: str, engine: AsyncEngine) -> dict[str, Any] | None:
    try:
        async with asyncio.timeout(_STATUS_TIMEOUT):
            async with engine.connect() as connection:
                if not await has_outbox(connection):
                    return None
            home = await OutboxTable(engine).read_identity()
            holders = await Leases(engine, "").holders()
            lag, topics = await read_lag(engine), await topics_used(engine)
            waiting = [event.to_json() for event in await list_undecided(engine)]
            unreadable = await unreadable_event(engine)
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        return {"connection": name, "error": f"the database does not answer: {driver_message(error)}"}
    shards = []
    for number in range(home.shards):
        holder = holders.get(number)
        shards.append(
            {
                "shard": number,
                "owner": holder.owner if holder and holder.owner and not holder.expired else None,
                "transactional_id": transactional_id(kafka, home.outbox_id, number),
                "new": lag.of(NEW, number).events,
                "oldest_seconds": round(lag.of(NEW, number).oldest, 3),
            }
        )
    answer: dict[str, Any] = {
        "connection": name,
        "outbox_id": home.outbox_id,
        "shards": shards,
        **_totals(lag),
        "needs_operator": waiting,
    }
    if unreadable is not None:
        answer["publishing_error"] = unreadable
    try:
        answer |= await asyncio.to_thread(_kafka_status, kafka, progress_topic(kafka, home.outbox_id), shards, topics)
        if answer["new"] and unreadable is None:
            answer |= await asyncio.to_thread(_publishing_error, kafka, progress_topic(kafka, home.outbox_id))
    except SagaError as error:
        answer["kafka_error"] = error.message
    return answer


async def unreadable_event(engine: AsyncEngine) -> str | None:
    """Why a relay with these settings cannot read the oldest event that waits; None if it can, or none waits."""
    columns = outbox_table.c
    wanted = (columns.event_id, columns.topic, columns.saga_id, columns.value, columns.event_key, columns.headers)
    query = sa.select(*wanted).where(columns.status == NEW)
    async with engine.connect() as connection:
        row: Any = (await connection.execute(query.order_by(columns.id).limit(1))).first()
    if row is None:
        return None
    try:
        decrypted_event(row._mapping, stored_values(engine))
    except UnreadableRow as error:
        return f"the oldest event cannot be read: {error}"
    return None


def _totals(lag: OutboxLag) -> dict[str, Any]:
    return {
        "new": lag.total(NEW).events,
        "oldest_seconds": round(lag.total(NEW).oldest, 3),
        "held": lag.total(HELD).events,
        "held_oldest_seconds": round(lag.total(HELD).oldest, 3),
        "refused": lag.total(REFUSED).events,
    }


_MISSING_TOPIC = "the topic does not exist"


def _kafka_status(
    kafka: KafkaSettings, progress_topic_name: str, shards: list[dict[str, Any]], topics: list[str]
) -> dict[str, Any]:
    """The lag of each topic; adds ``open_transaction`` to each of ``shards``."""
    cluster = KafkaAdmin(kafka)
    there = cluster.topics()
    ours = cluster.offsets(progress_topic_name) if progress_topic_name in there else {}
    for shard in shards:
        offsets = ours.get(shard["shard"])
        shard["open_transaction"] = offsets is not None and offsets.undecided_records > 0
    rows = []
    for topic in topics:
        if topic not in there:
            reason = cluster.unusable_topics([topic]).get(topic, _MISSING_TOPIC)
            advice = f"{reason}: run saga setup (or saga dev up); one that only code names must be in [kafka] topics"
            rows.append({"topic": topic, "error": advice if reason.startswith(_MISSING_TOPIC) else reason})
        elif "WRITE" not in cluster.authorized_operations(topic):
            rows.append({"topic": topic, "error": "this user may not write to the topic: an ACL is missing (WRITE)"})
        else:
            rows.append(
                {"topic": topic, "lso_lag": sum(offset.undecided_records for offset in cluster.offsets(topic).values())}
            )
    return {"topics": rows}


def _publishing_error(kafka: KafkaSettings, progress_topic_name: str) -> dict[str, Any]:
    """The reason why a relay with these settings could not start publishing, if any."""
    cluster = KafkaAdmin(kafka)
    try:
        cluster.check_transactions(f"{progress_topic_name}-status")
        if progress_topic_name not in cluster.topics():
            return {}  # the relay creates it, and reports an error if it may not
        lacking = [
            right for right in ("READ", "WRITE") if right not in cluster.authorized_operations(progress_topic_name)
        ]
    except KafkaOperationError as problem:
        return {"publishing_error": problem.message}
    if not lacking:
        return {}
    return {"publishing_error": f"Kafka, topic {progress_topic_name}: an ACL is missing ({' and '.join(lacking)})"}


log = logging.getLogger("saga.relay")

GAUGE_MAX_AGE = 5.0
"""Seconds for which gauge values are reused."""

_GAUGE_TIMEOUT = 5.0


class OutboxGauges:
    """The gauges of all outboxes of a relay, equal on every relay. A Prometheus collector; call ``refresh`` first."""

    def __init__(self, outboxes: Collection[Outbox]) -> None:
        self._outboxes = outboxes
        self._lags: dict[str, OutboxLag] = {}
        self._unanswered: dict[str, int] = {}
        self._transaction_lags: dict[tuple[str, str], int] = {}
        self.refresh = Refreshed(self._query_all, GAUGE_MAX_AGE).refresh
        """Query the databases and Kafka, unless the values are recent. Whatever does not answer is left out."""

    async def _query_all(self) -> None:
        await asyncio.gather(*(self._query(outbox) for outbox in self._outboxes))

    async def _query(self, outbox: Outbox) -> None:
        self._lags.pop(outbox.name, None)
        self._unanswered.pop(outbox.name, None)
        for key in [key for key in self._transaction_lags if key[0] == outbox.name]:
            del self._transaction_lags[key]
        try:
            async with asyncio.timeout(_GAUGE_TIMEOUT):
                self._lags[outbox.name] = await read_lag(outbox.table.engine)
                self._unanswered[outbox.name] = await count_unanswered(outbox.table.engine)
                topics = await topics_used(outbox.table.engine)
            for topic, offsets in (await transaction_lag(outbox, topics)).items():
                self._transaction_lags[outbox.name, topic] = offsets
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            log.debug("gauges not refreshed: %s", driver_message(error), extra=fields(outbox=outbox.name))
        except SagaError as error:
            log.debug("gauges not refreshed: %s", error.message, extra=fields(outbox=outbox.name))

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus collectors return them."""
        oldest = GaugeMetricFamily(
            "saga_outbox_oldest_seconds", "Seconds the oldest event has waited to be published.", labels=["connection"]
        )
        events = GaugeMetricFamily(
            "saga_outbox_events", "Events that are not published, by status.", labels=["connection", "status"]
        )
        unanswered = GaugeMetricFamily(
            "saga_outbox_unanswered", "Held events whose saga gives no answer.", labels=["connection"]
        )
        undecided = GaugeMetricFamily(
            "saga_relay_lso_lag", "Offsets held back by open transactions.", labels=["connection", "topic"]
        )
        for name, lag in self._lags.items():
            oldest.add_metric([name], lag.total(NEW).oldest)
            for status in (NEW, HELD, REFUSED):
                events.add_metric([name, status], lag.total(status).events)
        for name, count in self._unanswered.items():
            unanswered.add_metric([name], count)
        for (name, topic), offsets in self._transaction_lags.items():
            undecided.add_metric([name, topic], offsets)
        yield from (oldest, events, unanswered, undecided)


async def transaction_lag(outbox: Outbox, topics: Collection[str]) -> Mapping[str, int]:
    """Topic → offsets between its last stable offset and its end, held back by open transactions.

    Raises SagaError if Kafka does not answer.
    """

    def ask() -> dict[str, int]:
        cluster = KafkaAdmin(outbox.settings, timeout=_GAUGE_TIMEOUT)
        there = cluster.topics()
        asked = [*topics, progress_topic(outbox.settings, outbox.identity.outbox_id)]
        return {
            topic: sum(offset.undecided_records for offset in cluster.offsets(topic).values())
            for topic in asked
            if topic in there
        }

    return await asyncio.to_thread(ask)
