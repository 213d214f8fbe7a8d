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

from saga_activities.guard.tables_messaging import inbox, outbox
from saga_workers.databases import open_engine
from saga_workers.demo import topic as topics
from sagas.errors import SagaError
from sagas.settings import KafkaSettings, Settings

TOPIC = "orders"
CONSUMER = "bookings"
CONNECTION = "finance"

PATIENCE = 60.0
"""Seconds until events that do not get through count as held up."""

_PAUSE = 0.2


@dataclass(frozen=True, slots=True)
class Seen:
    """One order as the topic, or finance, has it: its id, its money as text with two digits."""

    order: int
    amount: str


@dataclass(frozen=True, slots=True)
class Channel:
    """``start``: where the topic stood when the shop opened; None: there is no Kafka, and events stay in the outbox."""

    kafka: KafkaSettings
    shop: AsyncEngine
    finance: AsyncEngine
    start: Mapping[int, int] | None = None

    @property
    def group(self) -> str:
        return f"{self.kafka.prefix}-consumer-{CONSUMER}"

    async def opened(self) -> Channel:
        """The channel of a shop that opens now: finance has booked nothing, and the topic counts from here."""
        async with self.finance.begin() as connection:
            await connection.execute(sa.delete(inbox).where(inbox.c.consumer == CONSUMER))
            await connection.execute(text("delete from booking"))
        if self.kafka.bootstrap_servers is None:
            return self
        return replace(self, start=await asyncio.to_thread(topics.ends, self.kafka, TOPIC))

    async def drain(self) -> None:
        """Wait until every event that may leave has been published and worked off.

        Without Kafka there is nothing to wait for. Raises SagaError: it does not get through.
        """
        if self.kafka.bootstrap_servers is None:
            return
        end = time.monotonic() + PATIENCE
        while True:
            unsent = (await self.outbox()).get("NEW", 0)
            late = await asyncio.to_thread(topics.behind, self.kafka, self.group, TOPIC)
            if not unsent and not late:
                return
            if time.monotonic() > end:
                raise SagaError(
                    f"The order events do not get through: {unsent} wait in the outbox, and finance is {late} behind.",
                    help="saga relay --status, saga dev logs relay, saga dev logs trigger",
                )
            await asyncio.sleep(_PAUSE)

    async def outbox(self) -> dict[str, int]:
        """How many events there are, by their state."""
        async with self.shop.connect() as connection:
            rows = await connection.execute(sa.select(outbox.c.status, sa.func.count()).group_by(outbox.c.status))
            return dict(rows.tuples().all())

    async def events(self) -> list[Seen]:
        """The order events since the shop opened, as any reader under read_committed sees them."""
        found = await asyncio.to_thread(topics.read, self.kafka, TOPIC, self.start or {})
        return [Seen(int(one.value["order"]), one.value["total"]) for one in found]

    async def undecided(self) -> int:
        """Records of transactions that have not ended."""
        return await asyncio.to_thread(topics.undecided, self.kafka, TOPIC)

    async def orders(self) -> list[Seen]:
        """The orders of the shop that are promised."""
        return await _seen(self.shop, "select order_id, total from orders where state <> 'draft'")

    async def bookings(self) -> list[Seen]:
        """What finance has booked."""
        return await _seen(self.finance, "select order_id, amount from booking")

    async def close(self) -> None:
        await self.finance.dispose()


def channel_of(settings: Settings, shop: AsyncEngine) -> Channel:
    """The channel of this project. Raises UsageError: it has no connection for finance."""
    return Channel(settings.kafka, shop, open_engine(settings.connection(CONNECTION)))


async def _seen(engine: AsyncEngine, query: str) -> list[Seen]:
    async with engine.connect() as connection:
        rows: Any = await connection.execute(text(query))
        return [Seen(order, str(amount)) for order, amount in rows]
