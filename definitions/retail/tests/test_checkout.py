"""Every way that the saga of a basket can end: the definition alone, in memory, without any server."""

from __future__ import annotations

from decimal import Decimal

import pytest

BASKET = {
    "basket_id": "b-1",
    "household_id": "h-1",
    "lines": [
        {"sku": "milk", "quantity": 2, "amount": Decimal("3.98")},
        {"sku": "bread", "quantity": 1, "amount": Decimal("2.50")},
    ],
    "coupons": [{"campaign": "18", "upc": "51111", "value": Decimal("0.50")}],
}

# What the real actions would answer.
RESULTS = {
    "reserve": {"sku": "milk", "quantity": 2, "amount": Decimal("3.98")},
    "redeem": {"upc": "51111", "value": Decimal("0.50")},
    "charge": {"id": "checkout-b-1/charge", "amount": Decimal("7.46")},
    "authorise": {"id": "checkout-tcc-b-1/authorise", "amount": Decimal("7.96")},
    "place": {"order_id": 7, "total": Decimal("7.46")},
    "draft": {"order_id": 7, "total": Decimal("7.96")},
    "pack": {"carrier": "van", "units": 3},
}

COLLECTED = {name: BASKET[name] for name in ("basket_id", "household_id", "lines")}


def test_a_basket_becomes_an_order(saga):
    run = saga.run("checkout", BASKET, results=RESULTS)
    assert run.state == "COMPLETED"
    assert run.output == {"order": 7, "total": Decimal("7.46"), "carrier": "van"}


def test_out_of_stock_releases_what_was_reserved_before(saga):
    run = saga.run("checkout", BASKET, outcomes={"reserve#1": "rejected"}, results=RESULTS)
    assert run.state == "COMPENSATED"
    assert run.undone == ["reserve#0"]


def test_a_used_coupon_undoes_the_reservations(saga):
    run = saga.run("checkout", BASKET, outcomes={"redeem": "rejected"}, results=RESULTS)
    assert run.state == "COMPENSATED"
    assert run.undone == ["reserve#1", "reserve#0"]


def test_declined_restores_the_coupon_first(saga):
    run = saga.run("checkout", BASKET, outcomes={"charge": "rejected"}, results=RESULTS)
    assert run.state == "COMPENSATED"
    assert run.undone == ["redeem#0", "reserve#1", "reserve#0"]


def test_an_order_that_cannot_be_placed_is_paid_back(saga):
    run = saga.run("checkout", BASKET, outcomes={"place": "rejected"}, results=RESULTS)
    assert run.state == "COMPENSATED"
    assert run.undone == ["charge", "redeem#0", "reserve#1", "reserve#0"]


def test_no_carrier_parks_and_undoes_nothing(saga):
    run = saga.run("checkout", BASKET, outcomes={"pack": "rejected"}, results=RESULTS)
    assert run.state == "PARKED"
    assert run.undone == []


def test_declined_in_the_tcc_form_cancels_the_tries(saga):
    run = saga.run("checkout-tcc", COLLECTED, outcomes={"authorise": "rejected"}, results=RESULTS)
    assert run.state == "COMPENSATED"
    assert run.undone == ["reserve#1", "reserve#0"]


@pytest.mark.parametrize(("name", "basket"), [("checkout", BASKET), ("checkout-tcc", COLLECTED)])
def test_every_failure(saga, name, basket):
    saga.check_all(name, basket, results=RESULTS)
