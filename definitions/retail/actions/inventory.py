"""The shelves: units are reserved for a basket, and released again or taken for good."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from sagas import Rejected, Step, action


@dataclass(frozen=True)
class Reservation:
    """Units of one product held for one basket; ``amount`` is the price of all of them together."""

    sku: str
    quantity: int
    amount: Decimal


@action("inventory.reserve", connection="shop")
async def reserve(step: Step, basket: str, sku: str, quantity: int, amount: Decimal) -> Reservation:
    """Hold units of one product for a basket."""
    held = await step.sql.one_or_none(
        "update stock set on_shelf = on_shelf - :quantity, reserved = reserved + :quantity "
        "where sku = :sku and on_shelf >= :quantity returning sku",
        sku=sku,
        quantity=quantity,
    )
    if held is None:
        shelf = await step.sql.one_or_none("select product, on_shelf from stock where sku = :sku", sku=sku)
        if shelf is None:
            raise Rejected(f"the shop does not sell {sku}", sku=sku)
        raise Rejected(
            f"{shelf.product}: {quantity} wanted, {shelf.on_shelf} on the shelf",
            sku=sku,
            wanted=quantity,
            on_shelf=shelf.on_shelf,
        )
    await step.sql.execute(
        "insert into reservation (basket_id, sku, quantity, amount) values (:basket, :sku, :quantity, :amount)",
        basket=basket,
        sku=sku,
        quantity=quantity,
        amount=amount,
    )
    return Reservation(sku, quantity, amount)


@action("inventory.release", connection="shop", rejects=False)
async def release(step: Step, basket: str, sku: str, quantity: int, amount: Decimal) -> None:
    """Put reserved units back on the shelf."""
    await _end_reservation(step, basket, sku)
    await step.sql.execute(
        "update stock set reserved = reserved - :quantity, on_shelf = on_shelf + :quantity where sku = :sku",
        sku=sku,
        quantity=quantity,
    )


@action("inventory.take", connection="shop", rejects=False)
async def take(step: Step, basket: str, sku: str, quantity: int, amount: Decimal) -> None:
    """Make a reservation final: the units leave the shop."""
    await _end_reservation(step, basket, sku)
    await step.sql.execute(
        "update stock set reserved = reserved - :quantity, sold = sold + :quantity where sku = :sku",
        sku=sku,
        quantity=quantity,
    )


async def _end_reservation(step: Step, basket: str, sku: str) -> None:
    """Raises when there is none: then the books are wrong, and no number may be moved."""
    await step.sql.one(
        "delete from reservation where basket_id = :basket and sku = :sku returning sku", basket=basket, sku=sku
    )
