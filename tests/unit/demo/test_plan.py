"""Sagas of the baskets: a pure function of the week."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal

from definitions.retail.demo.plan import GIFT, find_oversized, make_plan
from definitions.retail.demo.week import Basket, BasketLine, Coupon, SentCoupon, Week


def basket(id: str, units: int, amount: str = "10.00", household: str = "h", coupons: Sequence[Coupon] = ()) -> Basket:
    return Basket(id, household, "2017-12-18 17:00", 7, (BasketLine("milk", units, Decimal(amount)),), tuple(coupons))


def week(baskets: Sequence[Basket], limit: str = "1000.00", coupons: Sequence[SentCoupon] = ()) -> Week:
    limits = {basket.household: Decimal(limit) for basket in baskets}
    return Week(52, "2017-12-18", tuple(baskets), (), limits, tuple(coupons), len(baskets))


def test_every_basket_is_one_order_and_the_oversized_one_comes_first():
    baskets = [basket(str(number), units=number + 1) for number in range(100)]
    plan = make_plan(week(baskets, limit="5000.00"))
    assert sorted(order.basket.id for order in plan.orders) == sorted(basket.id for basket in baskets)
    assert plan.orders[0] is plan.oversized
    assert plan.oversized.basket.units == 100
    assert plan.oversized.saga == "checkout"


def test_only_the_oversized_order_has_no_carrier():
    baskets = [basket(str(units), units) for units in (3, 40, 88)]
    carriers = make_plan(week(baskets)).carriers
    assert max(carriers.values()) == 87


def test_a_household_over_its_limit_has_no_oversized_order():
    rich = basket("rich", 20, "50.00", household="r")
    poor = [basket("poor-1", 90, "60.00", household="p"), basket("poor-2", 5, "60.00", household="p")]
    assert find_oversized(week([rich, *poor], limit="100.00")) is rich


def test_an_invalid_coupon_excludes_the_oversized_order():
    coupon = Coupon("18", "51111", Decimal("1.00"))
    twice = [basket("a", 90, coupons=[coupon]), basket("b", 80, coupons=[coupon])]
    used = basket("c", 70, household="c", coupons=[coupon])
    sure = basket("d", 60, household="d", coupons=[coupon])
    sent = [SentCoupon("c", "18", "51111", date(2017, 12, 1)), SentCoupon("d", "18", "51111", None)]
    assert find_oversized(week([*twice, used, sure], coupons=sent)) is sure


def test_one_in_twenty_is_a_weekly_order_with_a_slot_and_too_few_gifts():
    baskets = [basket(str(number), units=3, amount=f"{number}.00") for number in range(1, 121)]
    baskets.append(basket("large", units=4))
    plan = make_plan(week(baskets, limit="10000.00"))
    weekly = [order for order in plan.orders if order.saga == "weekly-order"]
    assert {order.basket.amount for order in weekly} == {Decimal(120 - 20 * number) for number in range(6)}
    assert plan.orders[1:7] == tuple(weekly)
    assert set(plan.slots) == {order.input["slot"] for order in weekly}
    assert plan.gifts[GIFT] < len(weekly)


def test_baskets_with_coupons_are_never_collected():
    coupon = Coupon("18", "51111", Decimal("1.00"))
    baskets = [basket(str(number), 3, coupons=[coupon] if number % 2 else []) for number in range(60)]
    collected = [order for order in make_plan(week(baskets)).orders if order.saga == "checkout-tcc"]
    assert collected
    assert not any(order.basket.coupons for order in collected)


def test_money_is_a_string_in_the_input():
    coupon = Coupon("18", "51111", Decimal("0.50"))
    [order] = make_plan(week([basket("a", 3, "9.30", coupons=[coupon])])).orders
    assert order.input["lines"] == [{"sku": "milk", "quantity": 3, "amount": Decimal("9.30")}]
    assert order.input["coupons"] == [{"campaign": "18", "upc": "51111", "value": Decimal("0.50")}]
    assert order.basket.amount == Decimal("8.80")


def test_one_basket_of_one_unit_is_a_plan_too():
    plan = make_plan(week([basket("a", 1)]))
    assert [order.basket.id for order in plan.orders] == ["a"]
    assert plan.carriers == {}
