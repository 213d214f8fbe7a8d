"""The plan of the demo: which saga each basket becomes, as a pure function of the week."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Literal

from .week import Basket, Week

COLLECTED_EVERY = 10  # one basket in this many is collected in the shop (checkout-tcc)
WEEKLY_EVERY = 20  # and one in this many is a weekly order, dear and cheap ones alike
GIFT = "Christmas stollen"
SLOT_PLACES = 2
BICYCLE_UNITS = 12


def make_plan(week: Week) -> DemoPlan:
    """The orders of the week: the one that no carrier takes, then those of regular customers, then by time."""
    oversized = find_oversized(week)
    other_baskets = [basket for basket in week.baskets if basket is not oversized]
    by_price = sorted(other_baskets, key=lambda basket: basket.amount, reverse=True)
    regular = by_price[::WEEKLY_EVERY][: len(week.baskets) // WEEKLY_EVERY]
    weekly = {basket.id for basket in regular}
    # `checkout-tcc` knows no coupons.
    plain = [basket for basket in other_baskets if basket.id not in weekly and not basket.coupons]
    collected = {basket.id for basket in plain[COLLECTED_EVERY - 1 :: COLLECTED_EVERY]}

    orders = [checkout(oversized), *map(weekly_order, regular)]
    for basket in other_baskets:
        if basket.id in weekly:
            continue
        if basket.id in collected:
            orders.append(PlannedOrder("checkout-tcc", basket, _lines(basket)))
        else:
            orders.append(checkout(basket))
    return DemoPlan(
        orders=tuple(orders),
        oversized=orders[0],
        carriers=_carriers(oversized.units),
        slots={basket.hour: SLOT_PLACES for basket in regular},
        gifts={GIFT: len(regular) // 2},
    )


def checkout(basket: Basket) -> PlannedOrder:
    """The basket as a `checkout`."""
    return PlannedOrder("checkout", basket, {**_lines(basket), "coupons": _coupons(basket)})


def weekly_order(basket: Basket) -> PlannedOrder:
    """The basket as a `weekly-order`, delivered at the hour at which it was bought."""
    extra: dict[str, Any] = {"coupons": _coupons(basket), "slot": basket.hour, "gift": GIFT}
    return PlannedOrder("weekly-order", basket, {**_lines(basket), **extra})


def find_oversized(week: Week) -> Basket:
    """The largest basket that is sure to get as far as the warehouse.

    Its household can pay for everything it buys this week, and none of its coupons is presented twice.
    When there is no such basket, it is the largest one, and nothing may park.
    """
    spent: defaultdict[str, Decimal] = defaultdict(Decimal)
    for basket in week.baskets:
        spent[basket.household] += basket.amount
    used = {(sent.household, sent.campaign, sent.upc) for sent in week.coupons if sent.used_on}
    presented = Counter(key for basket in week.baskets for key in _coupon_keys(basket))

    def is_sure(basket: Basket) -> bool:
        affordable = spent[basket.household] <= week.limits[basket.household]
        return affordable and all(key not in used and presented[key] == 1 for key in _coupon_keys(basket))

    sure = [basket for basket in week.baskets if is_sure(basket)]
    return max(sure or week.baskets, key=lambda basket: basket.units)


def _carriers(oversized_units: int) -> dict[str, int]:
    """The van is full one unit before the oversized order."""
    carriers = {"bicycle": BICYCLE_UNITS, "van": oversized_units - 1}
    return {name: units for name, units in carriers.items() if 0 < units < oversized_units}


def _coupon_keys(basket: Basket) -> Iterable[tuple[str, str, str]]:
    return ((basket.household, coupon.campaign, coupon.upc) for coupon in basket.coupons)


def _lines(basket: Basket) -> dict[str, Any]:
    return {
        "basket_id": basket.id,
        "household_id": basket.household,
        "lines": [{"sku": line.sku, "quantity": line.quantity, "amount": line.amount} for line in basket.lines],
    }


def _coupons(basket: Basket) -> list[dict[str, Any]]:
    return [{"campaign": coupon.campaign, "upc": coupon.upc, "value": coupon.value} for coupon in basket.coupons]


# Which day is closed how. A pure function of what the days have sold.

DayRole = Literal["good", "refused", "undone", "tampered"]

CENT = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class DaySales:
    """The receipts of a day: the number of lines and their price."""

    day: date
    lines: int
    amount: Decimal


@dataclass(frozen=True, slots=True)
class PlannedClose:
    """One saga to start. ``role``: it goes well, its commission is refused, it is undone afterwards, or one of its rows
    was tampered with before."""

    role: DayRole
    sales: DaySales


@dataclass(frozen=True, slots=True)
class ClosePlan:
    """``limit`` is the most that the agency gets for one day."""

    closes: tuple[PlannedClose, ...]
    limit: Decimal


def plan_closes(sales: Sequence[DaySales], rate: Decimal) -> ClosePlan:
    """The agency may get one cent less than the commission on the largest day: that one is refused.

    Of the others, in order of time, one goes well, one is undone, one is tampered with. A day is closed once; what has
    no day of its own is left out.
    """
    remaining_days = sorted(sales, key=lambda day_sales: day_sales.day)
    paid = sorted(commission(day_sales.amount, rate) for day_sales in remaining_days)
    if not remaining_days:
        return ClosePlan((), Decimal())
    refused: list[PlannedClose] = []
    if len(paid) > 1 and paid[-1] > paid[-2]:
        largest = max(remaining_days, key=lambda day_sales: day_sales.amount)
        refused = [PlannedClose("refused", largest)]
        remaining_days.remove(largest)
    roles: tuple[DayRole, ...] = ("good", "undone", "tampered")
    good, *others = (PlannedClose(role, day_sales) for role, day_sales in zip(roles, remaining_days, strict=False))
    return ClosePlan((good, *refused, *others), paid[-1] - CENT if refused else paid[-1])


def commission(amount: Decimal, rate: Decimal) -> Decimal:
    """The commission that day-close pays for a day's sales, rounded as its expression does."""
    return (amount * rate).quantize(CENT, ROUND_HALF_UP)


@dataclass(frozen=True, slots=True)
class PlannedOrder:
    """One saga to start: its definition, the number of its basket and its input."""

    saga: str
    basket: Basket
    input: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """The saga that each basket becomes, and the needs of the shop besides its shelves.

    ``oversized`` is the order that no carrier takes; it is started first. ``carriers``: name → largest order in
    units; ``slots``: name → places; ``gifts``: name → pieces.
    """

    orders: tuple[PlannedOrder, ...]
    oversized: PlannedOrder
    carriers: Mapping[str, int]
    slots: Mapping[str, int]
    gifts: Mapping[str, int]
