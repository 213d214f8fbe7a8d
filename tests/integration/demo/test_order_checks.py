"""The reconciliation checks of orders: none fires on consistent data, and each detects its mismatch."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import pytest

from definitions.retail.demo.accounts import INVARIANTS, Accounts, BasketState, check_accounts, mismatches
from tests.integration.demo.conftest import ActionRunner

DONE = BasketState("b-1", "checkout", "COMPLETED", "committed")
UNDONE = BasketState("b-2", "checkout", "COMPENSATED", "backward")

# What must be broken for the check to speak, by the start of its rule. Constraints are dropped where they forbid it.
DAMAGE: dict[str, Sequence[str]] = {
    "initial = on shelf": [
        "alter table stock drop constraint every_unit_is_somewhere",
        "update stock set on_shelf = on_shelf - 1 where sku = 'milk'",
    ],
    "what is reserved": ["insert into reservation values ('b-9', 'bread', 1, 1.00)"],
    "what is sold": ["update order_line set quantity = quantity + 1"],
    "limit = available": [
        "alter table account drop constraint every_cent_is_somewhere",
        "update account set available = available - 0.01 where household_id = 'rich'",
    ],
    "what is held and charged": ["update charge set amount = amount + 0.01"],
    "every order costs": ["update order_line set amount = amount + 0.01"],
    "no money was charged": ["insert into charge values ('lost', 'rich', 'b-9', 1.00, 'held')"],
    "every coupon used": ["delete from redemption"],
    "a completed saga": ["update orders set state = 'placed'"],
    "every order belongs": ["update orders set basket_id = 'b-9'"],
    "every packed order": ["update shipment set units = units + 1"],
    "the customer was notified": ["delete from announcement"],
    "a compensated saga leaves": ["insert into reservation values ('b-2', 'bread', 1, 1.00)"],
    "delivery slots and gifts": ["update delivery_slot set booked = 1"],
}


async def test_a_shop_with_one_sold_basket_reconciles(run_action: ActionRunner):
    books = await _sell_one(run_action)
    assert books.balanced
    assert mismatches(books) == {}
    [completed] = [total for total in books.totals if total.state == "COMPLETED"]
    assert (completed.orders, completed.units_sold, completed.money, completed.coupons) == (1, 2, Decimal("3.48"), 1)
    assert (books.shop.units_initial, books.shop.units_on_shelf, books.shop.units_sold) == (13, 11, 2)


@pytest.mark.sampled(keep=7)
@pytest.mark.parametrize("check", INVARIANTS, ids=lambda check: check.rule)
async def test_each_check_detects_its_corruption(run_action: ActionRunner, check):
    assert (await _sell_one(run_action)).balanced
    [damage] = [how for start, how in DAMAGE.items() if check.rule.startswith(start)]
    for statement in damage:
        await run_action.run(statement)
    books = await check_accounts(run_action.engine, [DONE, UNDONE])
    await _repair(run_action)
    [finding] = [finding for finding in books.results if finding.invariant is check]
    assert finding.count > 0
    assert finding.violations
    assert not books.balanced


async def test_a_compensated_saga_with_an_order_is_found(run_action: ActionRunner):
    await _sell_one(run_action)
    books = await check_accounts(run_action.engine, [BasketState("b-1", "checkout", "COMPENSATED", "backward")])
    wrong = {finding.invariant.subject for finding in books.results if finding.count}
    assert wrong == {"orders", "undone"}


async def test_an_order_without_a_saga_is_found(run_action: ActionRunner):
    await _sell_one(run_action)
    books = await check_accounts(run_action.engine, [])
    assert [finding.violations for finding in books.results if finding.count] == [("b-1",)]
    assert mismatches(books)["orders"] == (0, 1)


async def _sell_one(run_action: ActionRunner) -> Accounts:
    line = {"basket": "b-1", "sku": "milk", "quantity": 2, "amount": Decimal("3.98")}
    await run_action("inventory.reserve", **line)
    await run_action("coupons.redeem", basket="b-1", household="rich", campaign="18", upc="51111", value="0.50")
    await run_action("payments.charge", key="s/charge", account="rich", basket="b-1", amount="3.48")
    order = await run_action("orders.place", basket="b-1", charge="s/charge")
    await run_action("warehouse.pack", order=order.order_id)
    await run_action("orders.announce", order=order.order_id, text="On its way.")
    return await check_accounts(run_action.engine, [DONE, UNDONE])


async def _repair(run_action: ActionRunner) -> None:
    """Put back the constraints that a damage dropped, for the next test."""
    await run_action.run("truncate stock, account cascade")
    await run_action.run(
        "alter table stock drop constraint if exists every_unit_is_somewhere, "
        "add constraint every_unit_is_somewhere check (initial = on_shelf + reserved + sold)"
    )
    await run_action.run(
        "alter table account drop constraint if exists every_cent_is_somewhere, "
        "add constraint every_cent_is_somewhere check (spending_limit = available + held + charged)"
    )
