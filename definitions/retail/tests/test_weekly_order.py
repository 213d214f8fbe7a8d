"""A graph with a wait, two branches, an optional step and a saga inside, in memory."""

from __future__ import annotations

from decimal import Decimal

SMALL = {
    "basket_id": "b-1",
    "household_id": "h-1",
    "slot": "2017-12-18 17:00",
    "gift": "Christmas stollen",
    "lines": [{"sku": "milk", "quantity": 2, "amount": Decimal("3.98")}],
}
LARGE = {**SMALL, "lines": [{"sku": "goose", "quantity": 3, "amount": Decimal("180.00")}]}

RESULTS = {
    "slot": {"slot": "2017-12-18 17:00"},
    "gift": {"gift": "Christmas stollen"},
    "buy": {"order": 7, "total": "3.98", "carrier": "van"},
}


def test_a_small_order_needs_no_approval(saga):
    run = saga.run("weekly-order", SMALL, results=RESULTS)
    assert run.state == "COMPLETED"
    assert run.output == {"order": 7, "slot": "2017-12-18 17:00"}


def test_a_large_order_that_is_not_approved_does_nothing(saga):
    run = saga.run("weekly-order", LARGE, outcomes={"approve": "rejected"}, results=RESULTS)
    assert run.state == "COMPENSATED"
    assert run.undone == []


def test_without_a_gift_the_order_goes_on(saga):
    run = saga.run("weekly-order", SMALL, outcomes={"gift": "rejected"}, results=RESULTS)
    assert run.state == "COMPLETED"


def test_a_failed_checkout_gives_back_the_slot_and_the_gift(saga):
    run = saga.run("weekly-order", SMALL, outcomes={"buy": "rejected"}, results=RESULTS)
    assert run.state == "COMPENSATED"
    assert sorted(run.undone) == ["gift", "slot"]


def test_every_failure(saga):
    saga.check_all("weekly-order", SMALL, results=RESULTS)
