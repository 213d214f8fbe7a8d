"""One saga in every state, for screenshots: a shop whose input selects how the saga ends."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from saga_activities.guard.schema import create_tables
from saga_activities.ledger.schema import create_ledger
from saga_workers.client import Client
from sagas import Rejected, Step, action
from tests.helpers.local_worker import finished, make_project, running_worker

CHECKOUT = """
saga: checkout
description: Take one basket from the shelf to a paid order.
input:
  type: object
  required: [sku, how]
  properties:
    sku: {type: string}
    how: {enum: [well, declined, parked, residue, waits]}
deadline: 2h
steps:
  - id: reserve
    name: Reserve the goods
    uses: inventory.reserve
    with: {sku: "${{ input.sku }}", how: "${{ input.how }}"}
    compensate: inventory.release
  - id: approval
    name: Wait for the approval
    if: ${{ input.how == 'waits' }}
    uses: wait
    with: {signal: approved, timeout: 1h, on_timeout: reject}
  - id: approver
    if: ${{ input.how == 'waits' }}
    uses: pass
    with: {result: "${{ steps.approval.result.data.by }}"}
  - id: charge
    name: Charge the card
    uses: payments.charge
    with: {sku: "${{ input.sku }}", how: "${{ input.how }}"}
    compensate: payments.refund
  - id: place
    name: Place the order
    uses: orders.place
    with: {sku: "${{ input.sku }}", how: "${{ input.how }}"}
    pivot: true
  - id: announce
    name: Tell the customer
    uses: mail.send
    with: {sku: "${{ input.sku }}", how: "${{ input.how }}"}
output: {order: "${{ steps.place.result.order }}"}
"""


@action("inventory.reserve", connection="shop")
async def reserve(step: Step, sku: str, how: str) -> dict[str, Any]:
    """Take one unit from the shelf."""
    await step.sql.execute("update stock set on_shelf = on_shelf - 1 where sku = :sku", sku=sku)
    return {"sku": sku}


@action("inventory.release", connection="shop")
async def release(step: Step, sku: str, how: str) -> None:
    """Release the reservation; for some it is rejected."""
    if how == "residue":
        raise Rejected("the shelf has been taken down")
    await step.sql.execute("update stock set on_shelf = on_shelf + 1 where sku = :sku", sku=sku)


@action("payments.charge", connection="shop")
async def charge(step: Step, sku: str, how: str) -> dict[str, Any]:
    """Charge the card."""
    return {"charge": f"ch-{sku}"}


@action("payments.refund", connection="shop")
async def refund(step: Step, sku: str, how: str) -> None:
    """Give the money back."""


@action("orders.place", connection="shop")
async def place(step: Step, sku: str, how: str) -> dict[str, Any]:
    """Write the order down; some are refused."""
    if how in ("declined", "residue"):
        raise Rejected("the card was declined", code="insufficient_funds")
    return {"order": f"order-{sku}"}


@action("mail.send", connection="shop", rejects=False)
async def send(step: Step, sku: str, how: str) -> None:
    """Tell the customer."""


@action("mail.refused", connection="shop")
async def refused(step: Step, sku: str, how: str) -> None:
    """Notify the customer, which fails."""
    raise Rejected("the mailbox does not exist")


PARKED = CHECKOUT.replace("saga: checkout", "saga: checkout-by-mail").replace("uses: mail.send", "uses: mail.refused")
BOOKING = """
saga: booking
input: {type: object, required: [sku], properties: {sku: {type: string}}}
steps:
  - id: reserve
    name: Reserve the goods
    uses: inventory.reserve
    with: {sku: "${{ input.sku }}", how: well}
    compensate: inventory.release
"""
HOSTILE_TEXT = (
    "<img src=x onerror=document.title='pwned'> **bold** [link](javascript:alert(1)) ![i](http://evil.example/p)"
    " http://evil.example www.evil.example a|b `code` <script>document.title='pwned'</script>"
    "\n\n# heading\n\n| new | row |"
)
"""What data could bring into Markdown."""

HOSTILE = """
saga: hostile
description: "<img src=x onerror=document.title='pwned'> [link](javascript:alert(1)) http://evil.example"
input: {type: object, required: [text], properties: {text: {type: string}}}
steps:
  - id: reserve
    name: "Reserve ${{ input.text }}"
    uses: inventory.reserve
    with: {sku: "${{ input.text }}", how: well}
    compensate: inventory.release
  - id: place
    name: "Place ${{ input.text }}"
    uses: mail.mirror
    pivot: true
    with: {text: "${{ input.text }}"}
"""


@action("mail.mirror", connection="shop")
async def mirror(step: Step, text: str) -> None:
    """Reject with the text of the caller."""
    raise Rejected(text)


ACTIONS = [reserve, release, charge, refund, place, send, refused, mirror]


@dataclass(frozen=True)
class Shop:
    """Ids of one saga in each state; ``client`` reads their stories."""

    client: Client
    ids: dict[str, str]


@asynccontextmanager
async def open_shop(folder: Path, address: str) -> AsyncIterator[Shop]:
    """A worker serves the sagas while the context is open."""
    url = f"sqlite+aiosqlite:///{folder / 'shop.db'}"
    engine = create_async_engine(url)
    await create_tables(engine)
    async with engine.begin() as connection:
        await connection.execute(text("create table stock (sku text primary key, on_shelf int)"))
        await connection.execute(text("insert into stock values ('pear', 100)"))
    definitions = {"checkout": CHECKOUT, "checkout-by-mail": PARKED, "booking": BOOKING, "hostile": HOSTILE}
    await create_ledger(engine)
    project = make_project(
        folder / "project", definitions, ACTIONS, address=address, connections={"shop": url}, ledger="shop"
    )
    async with running_worker(project) as client:
        yield Shop(client, await _fill(client))
        await client.close()
    await engine.dispose()


async def _fill(client: Client) -> dict[str, str]:
    ids: dict[str, str] = {}

    async def start(state: str, saga: str, how: str) -> str:
        ids[state] = f"{saga}-{how}-{uuid.uuid4().hex[:6]}"
        await client.start(saga, {"sku": "pear", "how": how}, id=ids[state])
        return ids[state]

    await finished(client, await start("COMPLETED", "checkout", "well"))
    await finished(client, await start("COMPENSATED", "checkout", "declined"))
    await finished(client, await start("PARKED", "checkout-by-mail", "parked"))
    await start("RUNNING", "checkout", "waits")
    residue = await finished(client, await start("RESIDUE", "checkout", "residue"))
    assert residue["state"] == "PARKED", residue
    await client.resolve(residue["id"], {"step": "reserve", "decision": "skip", "reason": "gone", "who": "ada"})
    await finished(client, residue["id"])
    ids["HOSTILE"] = f"hostile-{uuid.uuid4().hex[:6]}"
    await client.start("hostile", {"text": HOSTILE_TEXT}, id=ids["HOSTILE"])
    await finished(client, ids["HOSTILE"])
    return ids
