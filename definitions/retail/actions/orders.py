"""Orders: what was reserved and paid becomes a promise to the customer."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from sagas import Rejected, Step, action


@dataclass(frozen=True)
class Order:
    """A placed order. ``total`` is what the household pays."""

    order_id: int
    total: Decimal


@action("orders.place", connection="shop")
async def place(step: Step, basket: str, charge: str) -> Order:
    """Place the order for all that is reserved for the basket and paid by the charge."""
    return await _write(step, basket, charge, state="placed")


@action("orders.draft", connection="shop", holds=True)
async def draft(step: Step, basket: str, charge: str) -> Order:
    """Write the order down without promising anything yet: its event waits until the order is final."""
    return await _write(step, basket, charge, state="draft")


@action("orders.hand_over", connection="shop", rejects=False)
async def hand_over(step: Step, basket: str, charge: str) -> None:
    """Make a draft final: the customer collects it."""
    await step.sql.one(
        "update orders set state = 'collected' where basket_id = :basket and state = 'draft' returning order_id",
        basket=basket,
    )


@action("orders.discard", connection="shop", rejects=False)
async def discard(step: Step, basket: str, charge: str) -> None:
    """Throw a draft away."""
    await step.sql.one(
        "delete from orders where basket_id = :basket and state = 'draft' returning order_id", basket=basket
    )


@action("orders.announce", connection="shop", rejects=False)
async def announce(step: Step, order: int, text: str) -> None:
    """Tell the customer about the order."""
    await step.sql.execute("insert into announcement (order_id, text) values (:order, :text)", order=order, text=text)


async def _write(step: Step, basket: str, charge: str, *, state: str) -> Order:
    due = await step.sql.one(
        "select (select coalesce(sum(amount), 0) from reservation where basket_id = :basket) "
        "- (select coalesce(sum(value), 0) from redemption where basket_id = :basket) as total",
        basket=basket,
    )
    paid = await step.sql.one_or_none(
        "select household_id, amount from charge where id = :charge and basket_id = :basket "
        "and state in ('held', 'charged')",
        charge=charge,
        basket=basket,
    )
    if paid is None or paid.amount != due.total:
        raise Rejected(f"the basket costs {due.total}, but {paid.amount if paid else 'nothing'} was paid")
    order = await step.sql.one(
        "insert into orders (basket_id, household_id, charge_id, total, state) "
        "values (:basket, :household, :charge, :total, :state) returning order_id, total",
        basket=basket,
        household=paid.household_id,
        charge=charge,
        total=due.total,
        state=state,
    )
    await step.sql.execute(
        "insert into order_line (order_id, sku, quantity, amount) "
        "select :order, sku, quantity, amount from reservation where basket_id = :basket",
        order=order.order_id,
        basket=basket,
    )
    # Written in this transaction: the event is there if, and only if, the order is.
    step.emit(
        "orders",
        key=str(order.order_id),
        value={
            "order": order.order_id,
            "basket": basket,
            "household": paid.household_id,
            "total": order.total,
        },
        hold=state == "draft",
    )
    return Order(order.order_id, order.total)
