"""YAML → Temporal → a real database: a saga that completes, and one that is undone."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from saga_activities.guard.schema import create_tables
from sagas import Rejected, Step, action
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.processes import TemporalServer

CHECKOUT = """
saga: checkout
input:
  type: object
  required: [sku, quantity, limit]
steps:
  - id: reserve
    name: Reserve the goods
    uses: inventory.reserve
    with: {sku: "${{ input.sku }}", quantity: "${{ input.quantity }}"}
    compensate: inventory.release
  - id: charge
    uses: payments.charge
    with: {amount: "${{ steps.reserve.result.total }}", limit: "${{ input.limit }}"}
    pivot: true
output: {paid: "${{ steps.charge.result.paid }}"}
"""


@action("inventory.reserve", connection="shop")
async def reserve(step: Step, sku: str, quantity: int) -> dict:
    row = await step.sql.one_or_none(
        "update stock set left_over = left_over - :quantity where sku = :sku and left_over >= :quantity "
        "returning price",
        sku=sku,
        quantity=quantity,
    )
    if row is None:
        raise Rejected("out of stock", sku=sku)
    return {"total": row.price * quantity}


@action("inventory.release", connection="shop")
async def release(step: Step, sku: str, quantity: int) -> None:
    await step.sql.execute(
        "update stock set left_over = left_over + :quantity where sku = :sku", sku=sku, quantity=quantity
    )


@action("payments.charge", connection="shop")
async def charge(step: Step, amount: int, limit: int) -> dict:
    if amount > limit:
        raise Rejected("card declined", limit=limit)
    return {"paid": amount}


@pytest.fixture
async def shop(tmp_path: Path):
    url = f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}"
    engine = create_async_engine(url)
    await create_tables(engine)
    async with engine.begin() as connection:
        await connection.execute(text("create table stock (sku text primary key, left_over int, price int)"))
        await connection.execute(text("insert into stock values ('apple', 5, 2)"))
    yield url, engine
    await engine.dispose()


async def left_over(engine) -> int:
    async with engine.connect() as connection:
        return (await connection.execute(text("select left_over from stock"))).scalar_one()


async def test_a_saga_completes_and_another_is_undone(temporal: TemporalServer, shop, tmp_path: Path) -> None:
    url, engine = shop
    project = make_project(
        tmp_path / "project",
        {"checkout": CHECKOUT},
        [reserve, release, charge],
        address=temporal.address,
        connections={"shop": url},
    )
    async with running_worker(project) as client:
        good = await client.start("checkout", {"sku": "apple", "quantity": 2, "limit": 10}, id=f"good-{uuid.uuid4()}")
        assert await good.result() == {"paid": 4}
        story = await good.show()
        assert story["state"] == "COMPLETED"
        assert [step["state"] for step in story["steps"]] == ["DONE", "DONE"]
        assert await left_over(engine) == 3

        bad = await client.start("checkout", {"sku": "apple", "quantity": 2, "limit": 3}, id=f"bad-{uuid.uuid4()}")
        story = await finished(client, bad.id)
        assert story["state"] == "COMPENSATED"
        assert story["reason"]["kind"] == "rejected"
        assert story["reason"]["message"] == "card declined"
        assert story["steps"][0]["compensation"]["state"] == "DONE"
        assert await left_over(engine) == 3
