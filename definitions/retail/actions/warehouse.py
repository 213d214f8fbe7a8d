"""The warehouse: packs placed orders and gives them to the smallest carrier that can take them."""

from __future__ import annotations

from dataclasses import dataclass

from sagas import Rejected, Step, action


@dataclass(frozen=True)
class Shipment:
    """A packed order on its way."""

    carrier: str
    units: int


@action("warehouse.pack", connection="shop")
async def pack(step: Step, order: int) -> Shipment:
    """Pack an order: its reserved units leave the shop."""
    parcel = await step.sql.one(
        "select o.basket_id, sum(l.quantity) as units from orders o join order_line l using (order_id) "
        "where o.order_id = :order group by o.basket_id",
        order=order,
    )
    carrier = await step.sql.one_or_none(
        "select name from carrier where max_units >= :units order by max_units limit 1", units=parcel.units
    )
    if carrier is None:
        raise Rejected(f"no carrier takes an order of {parcel.units} units", order=order, units=parcel.units)
    # Several orders are packed at once; locking the shelves in one order keeps them from waiting in a circle.
    await step.sql.all(
        "select sku from stock where sku in (select sku from reservation where basket_id = :basket) "
        "order by sku for update",
        basket=parcel.basket_id,
    )
    await step.sql.execute(
        "update stock set reserved = stock.reserved - r.quantity, sold = stock.sold + r.quantity "
        "from reservation r where r.sku = stock.sku and r.basket_id = :basket",
        basket=parcel.basket_id,
    )
    await step.sql.execute("delete from reservation where basket_id = :basket", basket=parcel.basket_id)
    await step.sql.execute("update orders set state = 'packed' where order_id = :order", order=order)
    await step.sql.execute(
        "insert into shipment (order_id, carrier, units) values (:order, :carrier, :units)",
        order=order,
        carrier=carrier.name,
        units=parcel.units,
    )
    return Shipment(carrier.name, parcel.units)
