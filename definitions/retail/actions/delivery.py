"""The extras of a weekly order: a delivery slot, and a gift as long as they last."""

from __future__ import annotations

from dataclasses import dataclass

from sagas import Rejected, Step, action


@dataclass(frozen=True)
class Slot:
    """A time of delivery with a limited number of places."""

    slot: str


@dataclass(frozen=True)
class Gift:
    """Something small for a good customer."""

    gift: str


@action("delivery.book", connection="shop")
async def book(step: Step, basket: str, slot: str) -> Slot:
    """Book a place in a delivery slot."""
    booked = await step.sql.one_or_none(
        "update delivery_slot set booked = booked + 1 where slot = :slot and booked < capacity returning slot",
        slot=slot,
    )
    if booked is None:
        raise Rejected(f"no place is left in the delivery slot {slot}", slot=slot)
    await step.sql.execute(
        "insert into slot_booking (basket_id, slot) values (:basket, :slot)", basket=basket, slot=slot
    )
    return Slot(slot)


@action("delivery.cancel", connection="shop", rejects=False)
async def cancel(step: Step, basket: str, slot: str) -> None:
    """Give the place in a delivery slot back."""
    await step.sql.one("delete from slot_booking where basket_id = :basket returning slot", basket=basket)
    await step.sql.execute("update delivery_slot set booked = booked - 1 where slot = :slot", slot=slot)


@action("gifts.give", connection="shop")
async def give(step: Step, basket: str, household: str, gift: str) -> Gift:
    """Put a gift into the order: one for a household, as long as they last."""
    given = await step.sql.one_or_none(
        "insert into gift_given (household_id, gift, basket_id) values (:household, :gift, :basket) "
        "on conflict do nothing returning gift",
        household=household,
        gift=gift,
        basket=basket,
    )
    if given is None:
        raise Rejected(f"household {household} has had its gift", household=household)
    taken = await step.sql.one_or_none(
        "update gift set on_shelf = on_shelf - 1 where name = :gift and on_shelf > 0 returning name", gift=gift
    )
    if taken is None:
        raise Rejected(f"no {gift} is left", gift=gift)
    return Gift(gift)


@action("gifts.take_back", connection="shop", rejects=False)
async def take_back(step: Step, basket: str, household: str, gift: str) -> None:
    """Take a gift out of the order again."""
    await step.sql.one(
        "delete from gift_given where household_id = :household and basket_id = :basket returning gift",
        household=household,
        basket=basket,
    )
    await step.sql.execute("update gift set on_shelf = on_shelf + 1 where name = :gift", gift=gift)
