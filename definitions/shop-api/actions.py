"""The steps of the saga `checkout`."""

from __future__ import annotations

from sagas import Rejected, Step, action


@action("stock.take", connection="shop")
async def take(step: Step, product: str, quantity: int) -> None:
    """Take units of one product from the shelf."""
    taken = await step.sql.execute(
        "update stock set on_shelf = on_shelf - :quantity where product = :product and on_shelf >= :quantity",
        product=product,
        quantity=quantity,
    )
    if not taken:
        raise Rejected(f"not enough {product} on the shelf", product=product)


@action("stock.put_back", connection="shop")
async def put_back(step: Step, product: str, quantity: int) -> None:
    """Put the units back on the shelf."""
    await step.sql.execute(
        "update stock set on_shelf = on_shelf + :quantity where product = :product", product=product, quantity=quantity
    )


@action("orders.set", connection="shop")
async def set_state(step: Step, order: str, state: str) -> None:
    """Write down how far the order is."""
    await step.sql.execute("update orders set state = :state where id = :order", order=order, state=state)
