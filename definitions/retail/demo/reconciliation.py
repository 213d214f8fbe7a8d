"""Somebody deletes an order by hand, past every saga; and it is put back afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

# What hangs on an order, in the order in which it can be put back.
_ORDER_TABLES = ("orders", "order_line", "shipment", "announcement")


@dataclass(frozen=True, slots=True)
class DeletedOrder:
    """An order that is gone. ``rows`` are its rows, by table, as JSON; ``statement`` is what was typed."""

    order_id: int
    basket_id: str
    rows: Mapping[str, str]
    statement: str


async def delete_order(engine: AsyncEngine) -> DeletedOrder:
    """Delete the first order, with all that hangs on it. There must be one."""
    async with engine.begin() as connection:
        order = (
            await connection.execute(text("select order_id, basket_id from orders order by order_id limit 1"))
        ).one()
        named = {"id": order.order_id}
        rows = {table: await _rows_as_json(connection, table, order.order_id) for table in _ORDER_TABLES}
        for table in ("announcement", "shipment", "orders"):  # its lines go with it
            await connection.execute(text(f"delete from {table} where order_id = :id"), named)
    return DeletedOrder(order.order_id, order.basket_id, rows, f"delete from orders where order_id = {order.order_id}")


async def restore_order(engine: AsyncEngine, deleted: DeletedOrder) -> None:
    """Restore every row of the order as it was."""
    async with engine.begin() as connection:
        for table, rows in deleted.rows.items():
            await connection.execute(
                text(
                    f"insert into {table} overriding system value "
                    f"select * from jsonb_populate_recordset(null::{table}, cast(:rows as jsonb))"
                ),
                {"rows": rows},
            )


async def _rows_as_json(connection: AsyncConnection, table: str, order_id: int) -> str:
    rows = await connection.execute(
        text(f"select coalesce(jsonb_agg(to_jsonb(line)), '[]')::text from {table} line where order_id = :id"),
        {"id": order_id},
    )
    return rows.scalar_one()
