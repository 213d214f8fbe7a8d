"""Finance books each order when it hears of it. `saga trigger` runs this; nothing of the shop is read."""

from __future__ import annotations

from sagas import Message, consumer


@consumer("orders", connection="finance", name="bookings")
async def book(message: Message) -> None:
    """One booking for one order event: the inbox row and the booking are one transaction."""
    order = message.value
    await message.sql.execute(
        "insert into booking (order_id, basket_id, amount, event_id, saga_id) "
        "values (:order, :basket, cast(:total as numeric), :event, :saga)",
        order=order["order"],
        basket=order["basket"],
        total=order["total"],
        event=message.headers["ce_id"],
        saga=message.headers["sagaid"],
    )
