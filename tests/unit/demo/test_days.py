"""Closing days: a pure function of what the days have sold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal

from definitions.retail.demo.plan import DaySales, commission, plan_closes

RATE = Decimal("0.02")


def sales(*amounts: str) -> list[DaySales]:
    return [DaySales(date(2017, 12, 18 + number), 3, Decimal(amount)) for number, amount in enumerate(amounts)]


def roles(days: Sequence[DaySales]) -> dict[str, str]:
    return {closed.role: str(closed.sales.day) for closed in plan_closes(days, RATE).closes}


def test_the_largest_day_costs_one_cent_more_than_the_agency_gets():
    plan = plan_closes(sales("100.00", "300.00", "200.00", "150.00"), RATE)
    assert plan.limit == Decimal("5.99")
    assert {closed.sales.day.day: closed.role for closed in plan.closes} == {
        18: "good",
        19: "refused",
        20: "undone",
        21: "tampered",
    }
    paid = [commission(closed.sales.amount, RATE) for closed in plan.closes if closed.role != "refused"]
    assert all(amount <= plan.limit for amount in paid)


def test_days_are_in_time_order():
    assert roles(sales("100.00", "300.00", "200.00", "150.00")[::-1])["good"] == "2017-12-18"


def test_with_fewer_days_roles_are_omitted_and_no_day_repeats():
    assert roles(sales("100.00", "300.00", "200.00")) == {
        "good": "2017-12-18",
        "refused": "2017-12-19",
        "undone": "2017-12-20",
    }
    assert roles(sales("100.00", "300.00")) == {"good": "2017-12-18", "refused": "2017-12-19"}
    assert roles(sales("100.00")) == {"good": "2017-12-18"}


def test_of_more_days_only_the_first_ones_are_closed():
    plan = plan_closes(sales("1.00", "2.00", "3.00", "4.00", "5.00", "600.00"), RATE)
    assert [(closed.sales.day.day, closed.role) for closed in plan.closes] == [
        (18, "good"),
        (23, "refused"),
        (19, "undone"),
        (20, "tampered"),
    ]


def test_equal_largest_days_leave_no_day_refused():
    plan = plan_closes(sales("300.00", "300.10", "100.00", "50.00"), RATE)
    assert "refused" not in {closed.role for closed in plan.closes}
    assert plan.limit == Decimal("6.00")


def test_no_days_give_an_empty_plan():
    assert plan_closes([], RATE).closes == ()


def test_half_a_cent_is_rounded_up_as_the_definition_does():
    assert commission(Decimal("10.25"), RATE) == Decimal("0.21")  # 0.205
