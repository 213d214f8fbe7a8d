"""An order that is deleted by hand is removed with its dependent rows, and can be restored."""

from __future__ import annotations

from definitions.retail.demo.reconciliation import delete_order, restore_order
from tests.integration.demo.conftest import ActionRunner

EVERYTHING = (
    "select (select jsonb_agg(o) from orders o), (select jsonb_agg(l) from order_line l), "
    "(select jsonb_agg(s) from shipment s), (select jsonb_agg(a) from announcement a)"
)


async def test_a_deleted_order_can_be_restored(run_action: ActionRunner):
    await run_action("inventory.reserve", basket="b-1", sku="milk", quantity=2, amount="3.98")
    await run_action("payments.charge", key="s/charge", account="rich", basket="b-1", amount="3.98")
    order = (await run_action("orders.place", basket="b-1", charge="s/charge")).order_id
    await run_action("warehouse.pack", order=order)
    await run_action("orders.announce", order=order, text="On its way.")
    before = await run_action.row(EVERYTHING)
    assert None not in before

    deleted = await delete_order(run_action.engine)
    assert (deleted.order_id, deleted.statement) == (order, f"delete from orders where order_id = {order}")
    assert await run_action.row(EVERYTHING) == (None, None, None, None)

    await restore_order(run_action.engine, deleted)
    assert await run_action.row(EVERYTHING) == before
