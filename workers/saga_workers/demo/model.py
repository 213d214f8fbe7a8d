"""The shop as the demo opens it, before the first customer. Money is exact, in the shop's currency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """Some units of one product; ``amount`` is the price of all of them."""

    sku: str
    quantity: int
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Coupon:
    """A coupon presented at the till, and what it takes off."""

    campaign: str
    upc: str
    value: Decimal


@dataclass(frozen=True, slots=True)
class Basket:
    """One real basket. ``hour`` is the start of the hour in which it was bought, such as ``2017-12-18 15:00``;
    ``store`` is the number of the store."""

    id: str
    household: str
    hour: str
    store: int
    lines: tuple[Line, ...]
    coupons: tuple[Coupon, ...] = ()

    @property
    def day(self) -> date:
        return date.fromisoformat(self.hour[:10])

    @property
    def units(self) -> int:
        return sum(line.quantity for line in self.lines)

    @property
    def amount(self) -> Decimal:
        """What the household has to pay: the lines less the coupons."""
        return sum((line.amount for line in self.lines), Decimal()) - sum(
            (coupon.value for coupon in self.coupons), Decimal()
        )


@dataclass(frozen=True, slots=True)
class Shelf:
    """What the shop has of one product when it opens."""

    sku: str
    product: str
    units: int


@dataclass(frozen=True, slots=True)
class SentCoupon:
    """A coupon that was sent to a household; ``used_on`` is the earlier day on which it was used, if it was."""

    household: str
    campaign: str
    upc: str
    used_on: date | None


@dataclass(frozen=True, slots=True)
class Week:
    """What the data set says about the baskets that were chosen.

    ``number`` is the week's in the data set, 1 to 53. ``limits`` is what each household may spend. ``available`` is
    how many baskets the week has in all.
    """

    number: int
    first_day: str
    baskets: tuple[Basket, ...]
    shelves: tuple[Shelf, ...]
    limits: Mapping[str, Decimal]
    coupons: tuple[SentCoupon, ...]
    available: int


@dataclass(frozen=True, slots=True)
class Order:
    """One saga to start: its definition, the number of its basket and its input."""

    saga: str
    basket: Basket
    input: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """Which saga each basket becomes, and what the shop needs for that beside its shelves.

    ``oversized`` is the order that no carrier takes; it is started first. ``carriers``: name → largest order in
    units; ``slots``: name → places; ``gifts``: name → pieces.
    """

    orders: tuple[Order, ...]
    oversized: Order
    carriers: Mapping[str, int]
    slots: Mapping[str, int]
    gifts: Mapping[str, int]
