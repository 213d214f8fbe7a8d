"""Which day is closed how. A pure function of what the days have sold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal

Role = Literal["good", "refused", "undone", "tampered"]

CENT = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class Sales:
    """What the receipts of a day say: the number of lines and their price."""

    day: date
    lines: int
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Close:
    """One saga to start. ``role``: it goes well, its commission is refused, it is undone afterwards, or one of its rows
    was tampered with before."""

    role: Role
    sales: Sales


@dataclass(frozen=True, slots=True)
class Days:
    """``limit`` is the most that the agency gets for one day."""

    closes: tuple[Close, ...]
    limit: Decimal


def plan_days(sales: Sequence[Sales], rate: Decimal) -> Days:
    """The agency may get one cent less than the commission on the largest day: that one is refused.

    Of the others, in order of time, one goes well, one is undone, one is tampered with. A day is closed once; what has
    no day of its own is left out.
    """
    rest = sorted(sales, key=lambda one: one.day)
    paid = sorted(commission(one.amount, rate) for one in rest)
    if not rest:
        return Days((), Decimal())
    refused: list[Close] = []
    if len(paid) > 1 and paid[-1] > paid[-2]:
        largest = max(rest, key=lambda one: one.amount)
        refused = [Close("refused", largest)]
        rest.remove(largest)
    roles: tuple[Role, ...] = ("good", "undone", "tampered")
    good, *others = (Close(role, one) for role, one in zip(roles, rest, strict=False))
    return Days((good, *refused, *others), paid[-1] - CENT if refused else paid[-1])


def commission(amount: Decimal, rate: Decimal) -> Decimal:
    """What day-close pays for a day that sold so much, rounded as its expression does."""
    return (amount * rate).quantize(CENT, ROUND_HALF_UP)
