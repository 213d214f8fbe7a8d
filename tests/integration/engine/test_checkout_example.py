"""The example of the language: amounts that a Python action returns as Decimals are added up and charged exactly."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from saga_activities.guard.schema import create_tables
from sagas import Rejected, Step, action
from sagas.text.exact_json import decode_json
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.processes import TemporalServer

CHECKOUT = """
saga: checkout
description: Take one basket from the shelf to a paid order.
id: "checkout-${{ input.basket_id }}"

input:
  type: object
  required: [basket_id, household_id, lines]
  properties:
    basket_id: {type: string}
    household_id: {type: string}
    lines: {type: array, minItems: 1, items: {type: object, required: [sku, quantity]}}

deadline: 10m

steps:
  - id: reserve
    for_each: ${{ input.lines }}
    uses: inventory.reserve
    with: {sku: "${{ item.sku }}", quantity: "${{ item.quantity }}"}
    compensate: inventory.release

  - id: charge
    uses: payments.charge
    with:
      account: "${{ input.household_id }}"
      amount: "${{ sum(steps.reserve.results.map(r, decimal(r.line_total))) }}"
    compensate:
      uses: payments.refund
      with: {account: "${{ input.household_id }}", charge: "${{ steps.charge.result.id }}"}

  - id: place
    name: Place the order
    uses: orders.place
    with: {basket: "${{ input.basket_id }}", charge: "${{ steps.charge.result.id }}"}
    pivot: true

  - id: announce
    uses: kafka.publish
    with:
      topic: orders
      key: "${{ input.basket_id }}"
      value: {basket: "${{ input.basket_id }}", total: "${{ steps.charge.result.amount }}"}

output: {order: "${{ steps.place.result.order_id }}", total: "${{ steps.charge.result.amount }}"}
"""

PRICES = {"apple": Decimal("1.10"), "pear": Decimal("0.35")}
charged: list[Decimal] = []


@dataclass
class Reservation:
    sku: str
    line_total: Decimal


@dataclass
class Charge:
    id: int
    amount: Decimal


@action("inventory.reserve", connection="shop")
async def reserve(step: Step, sku: str, quantity: int) -> Reservation:
    if sku not in PRICES:
        raise Rejected("out of stock", sku=sku)
    return Reservation(sku=sku, line_total=PRICES[sku] * quantity)


@action("inventory.release", connection="shop")
async def release(step: Step, sku: str, quantity: int) -> None:
    assert isinstance(quantity, int)


@action("payments.charge", connection="shop")
async def charge(step: Step, account: str, amount: Decimal) -> Charge:
    charged.append(amount)
    return Charge(id=7, amount=amount)


@action("payments.refund", connection="shop")
async def refund(step: Step, account: str, charge: int) -> None:
    assert charge == 7


@action("orders.place", connection="shop")
async def place(step: Step, basket: str, charge: int) -> dict:
    return {"order_id": 42}


async def test_the_example_charges_the_exact_sum(temporal: TemporalServer, tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}"
    engine = create_async_engine(url)
    await create_tables(engine)
    project = make_project(
        tmp_path / "project",
        {"checkout": CHECKOUT},
        [reserve, release, charge, refund, place],
        address=temporal.address,
        connections={"shop": url},
        outbox="shop",
    )
    basket = str(uuid.uuid4())
    lines = [{"sku": "apple", "quantity": 3}, {"sku": "pear", "quantity": Decimal("2.0")}]
    async with running_worker(project) as client:
        run = await client.start("checkout", {"basket_id": basket, "household_id": "h-1", "lines": lines})
        story = await finished(client, run.id)
    assert (story["state"], run.id) == ("COMPLETED", f"checkout-{basket}")
    assert str(charged[-1]) == "4.00"
    assert str(story["output"]["total"]) == "4.00"
    async with engine.connect() as connection:
        value = (await connection.execute(sa.text("select value from saga_outbox"))).scalar_one()
    assert '"total":4.00' in value.replace(" ", "")
    assert str(decode_json(value)["total"]) == "4.00"
    await engine.dispose()
