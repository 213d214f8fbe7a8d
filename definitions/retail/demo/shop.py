"""Opens the shop: empties its tables and fills them with what the week begins with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.guard import watermark
from saga_activities.guard.tables import guard_table, outbox_table
from saga_activities.messaging.outbox import PUBLISHED
from saga_spark import output_records
from saga_spark.output_records import OutputRow

from .plan import DemoPlan
from .week import Week

TABLES = (
    "stock", "reservation", "coupon", "redemption", "account", "charge", "orders", "order_line",
    "carrier", "shipment", "announcement", "delivery_slot", "slot_booking", "gift", "gift_given",
    "receipt", "receipt_line", "agency", "commission", "finance_note",
)  # fmt: skip

LORRY = "lorry"
LORRY_UNITS = 1000


async def open_shop(engine: AsyncEngine, week: Week, plan: DemoPlan) -> None:
    """Replace everything in the shop's tables, in one transaction. The guard's rows are left alone."""
    async with engine.begin() as connection:
        await connection.exec_driver_sql(f"truncate {', '.join(TABLES)}")
        await _insert(
            connection,
            "stock",
            (
                {"sku": shelf.sku, "product": shelf.product, "initial": shelf.units, "on_shelf": shelf.units}
                for shelf in week.shelves
            ),
        )
        await _insert(
            connection,
            "account",
            (
                {"household_id": household, "spending_limit": limit, "available": limit}
                for household, limit in week.limits.items()
            ),
        )
        await _insert(
            connection,
            "coupon",
            (
                {
                    "household_id": sent.household,
                    "campaign": sent.campaign,
                    "upc": sent.upc,
                    "used_on": sent.used_on,
                }
                for sent in week.coupons
            ),
        )
        await _insert(
            connection,
            "carrier",
            ({"name": name, "max_units": units} for name, units in plan.carriers.items()),
        )
        await _insert(
            connection,
            "delivery_slot",
            ({"slot": slot, "capacity": places} for slot, places in plan.slots.items()),
        )
        await _insert_receipts(connection, week)
        await _insert(
            connection,
            "gift",
            ({"name": name, "initial": pieces, "on_shelf": pieces} for name, pieces in plan.gifts.items()),
        )


async def _insert_receipts(connection: AsyncConnection, week: Week) -> None:
    """Insert the receipt of every basket, as the tills print it whatever the saga comes to."""
    await _insert(
        connection,
        "receipt",
        (
            {"basket_id": basket.id, "day": basket.day, "store_id": basket.store, "week": week.number}
            for basket in week.baskets
        ),
    )
    await _insert(
        connection,
        "receipt_line",
        (
            {"basket_id": basket.id, "sku": line.sku, "quantity": line.quantity, "amount": line.amount}
            for basket in week.baskets
            for line in basket.lines
        ),
    )


async def next_round(engine: AsyncEngine) -> int:
    """The number of this demo in this database, from 1. It is a part of every saga id."""
    async with engine.begin() as connection:
        await connection.exec_driver_sql(
            "create table if not exists demo_round (number integer generated always as identity, "
            "opened_at timestamptz not null default now())"
        )
        row = await connection.exec_driver_sql("insert into demo_round default values returning number")
        return row.scalar_one()


async def hire_lorry(engine: AsyncEngine) -> str:
    """Give the warehouse a carrier for oversized orders; returns the SQL that did it, for people to read."""
    statement = f"insert into carrier (name, max_units) values ('{LORRY}', {LORRY_UNITS}) on conflict do nothing"
    async with engine.begin() as connection:
        await connection.exec_driver_sql(statement)
    return statement


async def _insert(connection: AsyncConnection, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    rows = [dict(row) for row in rows]
    if not rows:
        return
    columns = list(rows[0])
    statement = f"insert into {table} ({', '.join(columns)}) values ({', '.join(f':{name}' for name in columns)})"
    await connection.execute(text(statement), rows)


# Deleted when the shop opens again: all sagas of an earlier demo, as the guard's clean-up would after a month.
#
# Their goods, accounts and published days are gone, so nothing of them can be undone, and a reconciliation would find
# every one of their effects missing.


async def reset_earlier_demo(
    engine: AsyncEngine, stage: str, settle_seconds: float, drained: Callable[[], Awaitable[None]]
) -> None:
    """Refuse whatever still arrives of them, wait ``settle_seconds`` for what has arrived already and until their
    events have ``drained``, and delete what guard, ledger and stage area (a URI) have of them, and their events that
    were never published."""
    mark = await watermark.raise_to(engine.execution_options(isolation_level="AUTOCOMMIT"), time.time())
    await asyncio.sleep(settle_seconds)
    await drained()
    outputs = output_records.outputs
    async with engine.begin() as connection:
        rows = []
        if await connection.run_sync(lambda sync: sa.inspect(sync).has_table(outputs.name)):
            rows = [OutputRow.from_row(row) for row in (await connection.execute(sa.select(outputs))).mappings()]
            await connection.execute(sa.delete(outputs))
        await connection.execute(sa.delete(guard_table).where(guard_table.c.created_at < mark))
        # What was published is still in its topic, where a reconciliation sees whose event it is.
        events = outbox_table.c
        old = sa.select(events.id).where(events.created_at < mark, events.status != PUBLISHED)
        await connection.execute(sa.delete(outbox_table).where(outbox_table.c.id.in_(old)))
    if rows:
        await asyncio.to_thread(_clear_stage, rows, stage)


def _clear_stage(rows: Sequence[OutputRow], stage: str) -> None:
    from saga_spark.staging.stage_area import StageArea  # needs a package that a shop without Spark steps may lack

    for row in rows:
        StageArea(stage).remove_generation(row.target)
