"""Effects of the shop's actions on its tables: forward, refused, and undone without a trace."""

from __future__ import annotations

from decimal import Decimal

import pytest

from sagas import Rejected
from tests.integration.demo.conftest import ActionRunner

LINE = {"basket": "b-1", "sku": "milk", "quantity": 2, "amount": Decimal("3.98")}
COUPON = {"basket": "b-1", "household": "rich", "campaign": "18", "upc": "51111", "value": Decimal("0.50")}
MILK = "select on_shelf, reserved, sold from stock where sku = 'milk'"
PURSE = "select available, held, charged from account where household_id = 'rich'"
FULL = (Decimal("100.00"), Decimal("0.00"), Decimal("0.00"))


async def test_reserve_and_release(run_action: ActionRunner):
    reservation = await run_action("inventory.reserve", **LINE)
    assert reservation.amount == Decimal("3.98")
    assert await run_action.row(MILK) == (8, 2, 0)
    await run_action("inventory.release", **LINE)
    assert await run_action.row(MILK) == (10, 0, 0)
    assert await run_action.row("select count(*) from reservation") == (0,)


async def test_reserve_and_fetch(run_action: ActionRunner):
    await run_action("inventory.reserve", **LINE)
    await run_action("inventory.take", **LINE)
    assert await run_action.row(MILK) == (8, 0, 2)


async def test_a_shelf_cannot_be_oversold(run_action: ActionRunner):
    with pytest.raises(Rejected, match="Milk: 11 wanted, 10 on the shelf") as refused:
        await run_action("inventory.reserve", **{**LINE, "quantity": 11})
    assert refused.value.details == {"sku": "milk", "wanted": 11, "on_shelf": 10}
    assert await run_action.row(MILK) == (10, 0, 0)
    with pytest.raises(Rejected, match="does not sell caviar"):
        await run_action("inventory.reserve", **{**LINE, "sku": "caviar"})


async def test_a_release_without_a_reservation_changes_nothing(run_action: ActionRunner):
    with pytest.raises(Exception, match="exactly one is expected"):
        await run_action("inventory.release", **LINE)
    assert await run_action.row(MILK) == (10, 0, 0)


async def test_a_coupon_works_once_and_again_after_it_is_restored(run_action: ActionRunner):
    redemption = await run_action("coupons.redeem", **COUPON)
    assert redemption.value == Decimal("0.50")
    with pytest.raises(Rejected, match="used with basket b-1"):
        await run_action("coupons.redeem", **{**COUPON, "basket": "b-2"})
    await run_action("coupons.restore", **COUPON)
    assert await run_action.row("select count(*) from redemption") == (0,)
    await run_action("coupons.redeem", **{**COUPON, "basket": "b-2"})


async def test_a_coupon_of_last_week_or_of_somebody_else_is_refused(run_action: ActionRunner):
    with pytest.raises(Rejected, match="used on 2017-12-05"):
        await run_action("coupons.redeem", **{**COUPON, "household": "poor"})
    with pytest.raises(Rejected, match="not sent to this household"):
        await run_action("coupons.redeem", **{**COUPON, "upc": "99999"})


async def test_charge_and_refund(run_action: ActionRunner):
    charge = await run_action("payments.charge", key="s/charge", account="rich", basket="b-1", amount="99.99")
    assert (charge.id, charge.amount) == ("s/charge", Decimal("99.99"))
    assert await run_action.row(PURSE) == (Decimal("0.01"), Decimal("0.00"), Decimal("99.99"))
    await run_action("payments.refund", charge=charge.id)
    assert await run_action.row(PURSE) == FULL
    with pytest.raises(Exception, match="exactly one is expected"):
        await run_action("payments.refund", charge=charge.id)
    assert await run_action.row(PURSE) == FULL


async def test_a_charge_above_the_limit_is_rejected(run_action: ActionRunner):
    for name in ("payments.charge", "payments.authorise"):
        with pytest.raises(Rejected, match=r"100\.01 wanted, 100\.00 left of a limit of 100\.00"):
            await run_action(name, account="rich", basket="b-1", amount="100.01")
    with pytest.raises(Rejected, match="nobody has no account"):
        await run_action("payments.charge", account="nobody", basket="b-1", amount="1.00")
    assert await run_action.row(PURSE) == FULL


async def test_held_money_is_captured_or_released(run_action: ActionRunner):
    await run_action("payments.authorise", key="s/1", account="rich", basket="b-1", amount="10.00")
    await run_action("payments.authorise", key="s/2", account="rich", basket="b-2", amount="20.00")
    assert await run_action.row(PURSE) == (Decimal("70.00"), Decimal("30.00"), Decimal("0.00"))
    await run_action("payments.capture", charge="s/1")
    await run_action("payments.void", charge="s/2")
    assert await run_action.row(PURSE) == (Decimal("90.00"), Decimal("0.00"), Decimal("10.00"))


async def test_an_order_is_what_was_reserved_less_the_coupons(run_action: ActionRunner):
    order = await _placed(run_action)
    assert order.total == Decimal("3.48")
    assert await run_action.row("select sku, quantity, amount from order_line") == ("milk", 2, Decimal("3.98"))


async def test_an_order_that_was_not_paid_in_full_is_refused(run_action: ActionRunner):
    await run_action("inventory.reserve", **LINE)
    with pytest.raises(Rejected, match="nothing was paid"):
        await run_action("orders.place", basket="b-1", charge="s/charge")
    await run_action("payments.charge", key="s/charge", account="rich", basket="b-1", amount="3.97")
    with pytest.raises(Rejected, match=r"costs 3\.98, but 3\.97 was paid"):
        await run_action("orders.place", basket="b-1", charge="s/charge")


async def test_the_smallest_sufficient_carrier_takes_the_order(run_action: ActionRunner):
    order = await _placed(run_action)
    shipment = await run_action("warehouse.pack", order=order.order_id)
    assert (shipment.carrier, shipment.units) == ("bicycle", 2)
    assert await run_action.row(MILK) == (8, 0, 2)
    assert await run_action.row("select count(*) from reservation") == (0,)
    await run_action("orders.announce", order=order.order_id, text="On its way.")


async def test_an_order_that_no_carrier_takes_stays_reserved(run_action: ActionRunner):
    order = await _placed(run_action, quantity=7)
    with pytest.raises(Rejected, match="no carrier takes an order of 7 units"):
        await run_action("warehouse.pack", order=order.order_id)
    assert await run_action.row(MILK) == (3, 7, 0)


async def test_a_draft_is_handed_over_or_discarded(run_action: ActionRunner):
    order = {"basket": "b-1", "charge": "s/hold"}
    await run_action("inventory.reserve", **LINE)
    await run_action("payments.authorise", key="s/hold", account="rich", basket="b-1", amount="3.98")
    await run_action("orders.draft", **order)
    await run_action("orders.discard", **order)
    assert await run_action.row("select (select count(*) from orders), (select count(*) from order_line)") == (0, 0)
    await run_action("orders.draft", **order)
    await run_action("orders.hand_over", **order)
    assert await run_action.row("select state from orders") == ("collected",)


async def test_a_slot_has_limited_capacity(run_action: ActionRunner):
    slot = "2017-12-18 17:00"
    await run_action("delivery.book", basket="b-1", slot=slot)
    with pytest.raises(Rejected, match="no place is left"):
        await run_action("delivery.book", basket="b-2", slot=slot)
    await run_action("delivery.cancel", basket="b-1", slot=slot)
    await run_action("delivery.book", basket="b-2", slot=slot)


async def test_gifts_are_limited_and_one_per_order(run_action: ActionRunner):
    gift = {"gift": "stollen", "household": "rich", "basket": "b-1"}
    await run_action("gifts.give", **gift)
    with pytest.raises(Rejected, match="has had its gift"):
        await run_action("gifts.give", **gift)
    with pytest.raises(Rejected, match="no stollen is left"):
        await run_action("gifts.give", **{**gift, "household": "poor"})
    await run_action("gifts.take_back", **gift)
    await run_action("gifts.give", **{**gift, "household": "poor"})


async def _placed(run_action: ActionRunner, quantity: int = 2):
    await run_action("inventory.reserve", **{**LINE, "quantity": quantity})
    await run_action("coupons.redeem", **COUPON)
    await run_action("payments.charge", key="s/charge", account="rich", basket="b-1", amount="3.48")
    return await run_action("orders.place", basket="b-1", charge="s/charge")


async def test_the_commission_of_a_day_has_a_limit_and_can_be_reclaimed(run_action: ActionRunner):
    await run_action.run("insert into agency values ('Placements & Co', 5.00)")
    with pytest.raises(Rejected, match=r"the commission is refused: 5\.01 for 2017-12-18") as refused:
        await run_action("finance.pay", day="2017-12-18", amount="5.01")
    assert refused.value.details == {"day": "2017-12-18", "wanted": "5.01", "limit": "5.00"}
    paid = await run_action("finance.pay", key="s/commission", day="2017-12-18", amount="5.00")
    await run_action("finance.reclaim", commission=paid.id)
    assert await run_action.row("select id, amount, state from commission") == (
        "s/commission",
        Decimal("5.00"),
        "reclaimed",
    )
    with pytest.raises(Exception, match="exactly one is expected"):
        await run_action("finance.reclaim", commission=paid.id)


async def test_finance_bookings_are_sent_and_corrected(run_action: ActionRunner):
    note = {"day": "2017-12-18", "sales": "250.00", "commission": "5.00"}
    state = "select day::text, sales, commission, state from finance_note"
    await run_action("finance.draft", **note)
    await run_action("finance.discard", **note)
    assert await run_action.row("select count(*) from finance_note") == (0,)
    await run_action("finance.draft", **note)
    await run_action("finance.send", **note)
    with pytest.raises(Exception, match="exactly one is expected"):
        await run_action("finance.discard", **note)
    await run_action("finance.correct", **note)
    assert await run_action.row(state) == ("2017-12-18", Decimal("250.00"), Decimal("5.00"), "corrected")
