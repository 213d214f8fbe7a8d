"""From the shop's outbox through the topic into the books of finance: waits until it is empty, and reads both ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.tables import inbox_table, outbox_table
from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.config import consumer_config
from saga_activities.kafka.record_codec import DecodedRecord, decode
from saga_workers.runtime.databases import open_command_engine
from sagas.errors import SagaError
from sagas.settings import KafkaSettings, Settings

TOPIC = "orders"
CONSUMER = "bookings"
FINANCE_CONNECTION = "finance"

DRAIN_TIMEOUT = 60.0
"""Seconds until events that do not get through count as held up."""

_POLL_INTERVAL = 0.2


@dataclass(frozen=True, slots=True)
class OrderAmount:
    """One order as the topic, or finance, has it: its id, its money as text with two digits."""

    order: int
    amount: str


@dataclass(frozen=True, slots=True)
class OrderChannel:
    """``start``: where the topic stood when the shop opened; None: there is no Kafka, and events stay in the outbox."""

    kafka: KafkaSettings
    shop: AsyncEngine
    finance: AsyncEngine
    start: Mapping[int, int] | None = None

    @property
    def group(self) -> str:
        return f"{self.kafka.prefix}-consumer-{CONSUMER}"

    async def from_now_on(self) -> OrderChannel:
        """The channel of a shop that opens now: finance has booked nothing, and the topic counts from here."""
        async with self.finance.begin() as connection:
            await connection.execute(sa.delete(inbox_table).where(inbox_table.c.consumer == CONSUMER))
            await connection.execute(text("delete from booking"))
        if self.kafka.bootstrap_servers is None:
            return self
        return replace(self, start=await asyncio.to_thread(end_offsets, self.kafka, TOPIC))

    async def drain(self) -> None:
        """Wait until every event that may leave has been published and worked off.

        Without Kafka there is nothing to wait for. Raises SagaError: it does not get through.
        """
        if self.kafka.bootstrap_servers is None:
            return
        end = time.monotonic() + DRAIN_TIMEOUT
        while True:
            unsent = (await self.outbox_counts()).get("NEW", 0)
            late = await asyncio.to_thread(group_lag, self.kafka, self.group, TOPIC)
            if not unsent and not late:
                return
            if time.monotonic() > end:
                raise SagaError(
                    f"the order events are late: {unsent} wait in the outbox, finance is {late} behind",
                    help="saga relay --status, saga dev logs relay, saga dev logs trigger",
                )
            await asyncio.sleep(_POLL_INTERVAL)

    async def outbox_counts(self) -> dict[str, int]:
        """How many events there are, by their state."""
        async with self.shop.connect() as connection:
            status = outbox_table.c.status
            rows = await connection.execute(sa.select(status, sa.func.count()).group_by(status))
            return dict(rows.tuples().all())

    async def events(self) -> list[OrderAmount]:
        """The order events since the shop opened, as any reader under read_committed sees them."""
        records = await asyncio.to_thread(read_events, self.kafka, TOPIC, self.start or {})
        return [OrderAmount(int(record.value["order"]), str(record.value["total"])) for record in records]

    async def undecided_records(self) -> int:
        """Records of transactions that have not ended."""
        return await asyncio.to_thread(count_undecided, self.kafka, TOPIC)

    async def orders(self) -> list[OrderAmount]:
        """The orders of the shop that are promised."""
        return await _order_amounts(self.shop, "select order_id, total from orders where state <> 'draft'")

    async def bookings(self) -> list[OrderAmount]:
        """The bookings of finance."""
        return await _order_amounts(self.finance, "select order_id, amount from booking")

    async def close(self) -> None:
        await self.finance.dispose()


def open_channel(settings: Settings, shop: AsyncEngine) -> OrderChannel:
    """The channel of this project. Raises UsageError: it has no connection for finance."""
    return OrderChannel(settings.kafka, shop, open_command_engine(settings.sql_connection(FINANCE_CONNECTION)))


async def _order_amounts(engine: AsyncEngine, query: str) -> list[OrderAmount]:
    async with engine.connect() as connection:
        rows: Any = await connection.execute(text(query))
        return [OrderAmount(order, str(amount)) for order, amount in rows]


# What a reader of a topic sees under ``read_committed``, from given offsets on. Everything blocks.

READ_TIMEOUT = 30.0
"""Seconds until a topic that does not come to its end counts as held up."""


def end_offsets(settings: KafkaSettings, topic: str) -> dict[int, int]:
    """Partition → the offset up to which everything is decided."""
    return {partition: bounds.last_stable for partition, bounds in KafkaAdmin(settings).offsets(topic).items()}


def count_undecided(settings: KafkaSettings, topic: str) -> int:
    """How many records wait for the end of a transaction."""
    return sum(bounds.undecided_records for bounds in KafkaAdmin(settings).offsets(topic).values())


def group_lag(settings: KafkaSettings, group: str, topic: str) -> int:
    """By how many offsets a consumer group is behind all that was written: a commit returns before readers see it."""
    cluster = KafkaAdmin(settings)
    reached = cluster.committed_offsets(group, topic)
    return sum(
        max(0, bounds.high_watermark - reached.get(partition, bounds.log_start))
        for partition, bounds in cluster.offsets(topic).items()
    )


def read_events(settings: KafkaSettings, topic: str, start: Mapping[int, int]) -> list[DecodedRecord]:
    """All events from ``start`` (partition → offset; absent: the first) up to the end of what is decided now.

    Raises SagaError: it was not read in half a minute.
    """
    from confluent_kafka import Consumer, TopicPartition

    last = end_offsets(settings, topic)
    open_ends = {partition for partition, end in last.items() if end > start.get(partition, 0)}
    consumer = Consumer({**consumer_config(settings, f"{settings.prefix}-demo"), "enable.partition.eof": True})
    records: list[DecodedRecord] = []
    try:
        consumer.assign([TopicPartition(topic, partition, start.get(partition, 0)) for partition in open_ends])
        end = time.monotonic() + READ_TIMEOUT
        while open_ends:
            if time.monotonic() > end:
                raise SagaError(f"the topic {topic} could not be read to its end within {READ_TIMEOUT:.0f} s")
            message = consumer.poll(0.5)
            if message is None:
                continue
            partition, error = message.partition() or 0, message.error()
            if error is None:
                records.append(decode(message))
            elif error.name() == "_PARTITION_EOF":
                # The position also counts the markers with which transactions end.
                [position] = consumer.position([TopicPartition(topic, partition)])
                if max(position.offset, message.offset() or 0) >= last[partition]:
                    open_ends.discard(partition)
    finally:
        consumer.close()
    return records
