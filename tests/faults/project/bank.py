"""The actions of the fault matrix: each moves money inside one bank and records it in the journal.

`enter` (schema.sql) writes the journal, stops at the breakpoint if the harness has set it, and returns what the test
wants this attempt to do. Where a cell has Kafka, each effect is an event as well.
"""

from __future__ import annotations

from typing import Any

from sagas import Rejected, Step, action

BIG = 3 * 1024 * 1024
"""Characters of a result that no Temporal payload can carry."""

LARGE = 900_000
"""Characters of a result of which one payload can carry two, and not three."""

SIZES = {"big": BIG, "large": LARGE}


ENTER = """
select enter(:saga_id, :step, :op, :generation) as behaviour, (
    select topic from channels c where c.step is null or (c.step = :step and c.op = :op) order by c.step limit 1
) as topic
"""


OPEN_ORDER = """
insert into orders values (:saga_id, 'open')
on conflict (saga_id) do update set state = 'open' where orders.state = 'cancelled'
"""
"""After a savepoint an order is opened again."""


async def enter(step: Step, amount: int) -> dict[str, Any]:
    row = await step.sql.one_or_none(ENTER, saga_id=step.saga_id, step=step.id, op=step.op, generation=step.generation)
    behaviour = row.behaviour if row is not None else ""
    if row is not None and row.topic is not None:
        step.emit(row.topic, key=step.saga_id, value={"step": step.id, "op": step.op})
    if behaviour == "reject":
        raise Rejected(f"the test refuses {step.op} {step.id}")
    if behaviour == "fail":
        raise RuntimeError(f"the test breaks {step.op} {step.id}")
    return {"amount": amount, **({"big": "x" * SIZES[behaviour]} if behaviour in SIZES else {})}


async def move(step: Step, source: str, target: str, amount: int) -> dict[str, Any]:
    result = await enter(step, amount)
    for account, change in ((source, -amount), (target, amount)):
        await step.sql.execute(
            "update accounts set balance = balance + :change where id = :account", change=change, account=account
        )
    return result


@action("bank.debit", connection="bank")
async def debit(step: Step, customer: str, note: Any) -> dict:
    return await move(step, customer, "transit", 30)


@action("bank.debit_back", connection="bank")
async def debit_back(step: Step, customer: str, note: Any) -> dict:
    return await move(step, "transit", customer, 30)


@action("bank.hold", connection="bank")
async def hold(step: Step, customer: str, note: Any) -> dict:
    result = await enter(step, 10)
    await step.sql.execute("update accounts set balance = balance - 10 where id = :customer", customer=customer)
    await step.sql.execute("insert into holds values (:saga_id, 10)", saga_id=step.saga_id)
    return result


@action("bank.release", connection="bank")
async def release(step: Step, customer: str, note: Any) -> dict:
    result = await enter(step, 10)
    await _release(step, customer)
    return result


@action("bank.release_by_hand", connection="bank")
async def release_by_hand(step: Step, customer: str) -> dict:
    await step.sql.execute(
        "insert into journal (saga_id, step, op) values (:saga_id, :step, 'undo')", saga_id=step.saga_id, step=step.id
    )
    await _release(step, customer)
    return {"amount": 10}


async def _release(step: Step, customer: str) -> None:
    await step.sql.execute("delete from holds where saga_id = :saga_id", saga_id=step.saga_id)
    await step.sql.execute("update accounts set balance = balance + 10 where id = :customer", customer=customer)


@action("bank.order", connection="bank")
async def order(step: Step, customer: str, note: Any) -> dict:
    result = await move(step, customer, "fees", 1)
    await step.sql.execute(OPEN_ORDER, saga_id=step.saga_id)
    return result


@action("bank.order_cancel", connection="bank")
async def order_cancel(step: Step, customer: str, note: Any) -> dict:
    result = await move(step, "fees", customer, 1)
    await step.sql.execute("update orders set state = 'cancelled' where saga_id = :saga_id", saga_id=step.saga_id)
    return result


@action("bank.capture", connection="bank")
async def capture(step: Step, customer: str, note: Any) -> dict:
    result = await move(step, "transit", "merchant", 30)
    await step.sql.execute("delete from holds where saga_id = :saga_id", saga_id=step.saga_id)
    await step.sql.execute("update accounts set balance = balance + 10 where id = 'merchant'")
    return result


@action("bank.ship", connection="bank")
async def ship(step: Step, customer: str, note: Any) -> dict:
    result = await move(step, "merchant", "carrier", 2)
    await step.sql.execute("update orders set state = 'shipped' where saga_id = :saga_id", saga_id=step.saga_id)
    return result


@action("bank.occupy_connection", connection="bank")
async def occupy_connection(step: Step) -> None:
    """Moves nothing; takes room in the pool as long as the harness holds it up."""
    await step.sql.execute("select breakpoint('effect', 'occupy', 'do')")


@action("bank.thank", connection="bank")
async def thank(step: Step, customer: str, note: Any) -> dict:
    return await move(step, "merchant", "marketing", 3)


@action("bank.visit", connection="bank")
async def visit(step: Step) -> dict:
    return await enter(step, 0)
