"""Closes the days of the shop: one saga for each, of which one is refused, one undone, and one has a false row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_spark.keys import Target
from saga_spark.runner.java import check_java
from saga_spark.settings import spark_settings
from saga_workers.client import Client
from saga_workers.demo.books import Finding
from saga_workers.demo.day_books import Closed, check_days
from saga_workers.demo.days import Close, Days, Sales, plan_days
from saga_workers.demo.following import Story, follow
from saga_workers.demo.lake import Lake, clear, read, staged_files
from saga_workers.demo.promotions import FOLDER, prepare
from sagas.errors import UsageError
from sagas.settings import Settings

SAGA = "day-close"
OUTPUTS = ("facts", "totals")
"""The steps that stage something."""

AGENCY = "Placements & Co"

TOO_MUCH = Decimal("10.00")
"""By so much a line is made dearer where somebody has tampered with it."""

LOOK_AGAIN = 10.0
"""Seconds between two questions whether a day is parked."""


@dataclass(frozen=True, slots=True)
class DayOutcome:
    """One day and how its saga stands. ``tampered``: the SQL that falsified a row before it."""

    close: Close
    story: Story
    tampered: str | None = None


@dataclass(frozen=True, slots=True)
class Closing:
    """The days of one demo. ``round`` keeps the ids of several demos apart, ``promotions`` is how many there are."""

    settings: Settings
    client: Client
    engine: AsyncEngine
    round: int
    days: Days
    promotions: int

    @property
    def rate(self) -> Decimal:
        return rate_of(self.settings)

    def saga_id(self, close: Close) -> str:
        return f"{SAGA}-{close.sales.day}-{close.role}-r{self.round}"

    async def run(self, on_end: Callable[[DayOutcome], None]) -> list[DayOutcome]:
        """Close all days side by side: they share one warm Spark session."""

        async def one(close: Close) -> DayOutcome:
            outcome = await (self._tampered(close) if close.role == "tampered" else self._close(close))
            on_end(outcome)
            return outcome

        return list(await asyncio.gather(*map(one, self.days.closes)))

    async def look_again(self, outcome: DayOutcome) -> DayOutcome:
        """The day after somebody has done something about its saga."""
        return replace(outcome, story=await self.client.show(self.saga_id(outcome.close)))

    async def check(self, outcomes: Sequence[DayOutcome]) -> tuple[Finding, ...]:
        """Hold lake, stage area and finance against the receipts and the sagas."""
        closed = [self._closed(one) for one in outcomes]
        return await check_days(self.engine, closed, await self.lake(), self.rate)

    async def lake(self) -> Lake:
        """What readers of the lake see now."""
        return await asyncio.to_thread(read, self.settings)

    async def _close(self, close: Close) -> DayOutcome:
        saga_id = self.saga_id(close)
        await self.client.start(SAGA, {"day": str(close.sales.day)}, id=saga_id)
        return DayOutcome(close, await follow(self.client, saga_id, LOOK_AGAIN))

    async def _tampered(self, close: Close) -> DayOutcome:
        """Make one line of the day dearer, close the day, and put the line right again."""
        async with self.engine.begin() as connection:
            line = (
                await connection.execute(
                    text(
                        "select order_id, sku from orders join receipt using (basket_id) join order_line "
                        "using (order_id) where day = :day and state <> 'draft' order by order_id, sku limit 1"
                    ),
                    {"day": close.sales.day},
                )
            ).one()
        where = f"where order_id = {line.order_id} and sku = '{line.sku}'"
        await self._execute(f"update order_line set amount = amount + {TOO_MUCH} {where}")
        try:
            outcome = await self._close(close)
        finally:
            await self._execute(f"update order_line set amount = amount - {TOO_MUCH} {where}")
        return replace(outcome, tampered=f"update order_line set amount = amount + {TOO_MUCH} {where}")

    async def _execute(self, statement: str) -> None:
        async with self.engine.begin() as connection:
            await connection.exec_driver_sql(statement)

    def _closed(self, outcome: DayOutcome) -> Closed:
        stage = spark_settings(self.settings).stage
        saga_id = self.saga_id(outcome.close)
        kept = outcome.close.role == "tampered"  # what an audit has refused stays for people to look at
        staged = [path for step in OUTPUTS for path in staged_files(stage, Target(saga_id, step, 1).key) if not kept]
        story = outcome.story
        return Closed(outcome.close, saga_id, story["state"], story["committed_at"] is not None, staged)


def missing() -> str | None:
    """Why no day can be closed on this machine, one sentence; None: there is a Java."""
    try:
        check_java()
    except UsageError as error:
        return error.message
    return None


async def open_closing(settings: Settings, client: Client, engine: AsyncEngine, round: int) -> Closing:
    """Plan the days, empty the lake of an earlier demo, and make the promotions ready. Raises UsageError."""
    promotions, sales, _ = await asyncio.gather(
        asyncio.to_thread(prepare, settings.root / FOLDER), _sales(engine), asyncio.to_thread(clear, settings)
    )
    days = plan_days(sales, rate_of(settings))
    async with engine.begin() as connection:
        await connection.execute(
            text("insert into agency (name, day_limit) values (:name, :limit)"), {"name": AGENCY, "limit": days.limit}
        )
    return Closing(settings, client, engine, round, days, promotions)


def rate_of(settings: Settings) -> Decimal:
    """The share of the sales that is the commission."""
    return Decimal(settings.vars["commission_rate"])


async def _sales(engine: AsyncEngine) -> list[Sales]:
    async with engine.connect() as connection:
        rows = await connection.execute(
            text(
                "select day, count(*) as lines, sum(line.amount) as amount from orders join receipt using (basket_id) "
                "join receipt_line line using (basket_id) where state <> 'draft' group by day"
            )
        )
        return [Sales(row.day, row.lines, row.amount) for row in rows]
