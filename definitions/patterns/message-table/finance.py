"""Finance hears of an order by its event alone. `saga trigger` runs this."""

from __future__ import annotations

from sagas import Message, Rejected, consumer


@consumer("order-placed", connection="finance")
async def book(message: Message) -> None:
    """Book an order: the inbox row, the booking and the reply are one transaction."""
    order = message.value
    row = await message.sql.one_or_none(
        "update budget set free = free - :amount where id = 'orders' and free >= :amount returning free",
        amount=order["amount"],
    )
    if row is None:
        raise Rejected("the budget is exhausted", order=order["id"])  # the reply of a business rejection
    await message.sql.execute("insert into booking values (:id, :amount)", id=order["id"], amount=order["amount"])
