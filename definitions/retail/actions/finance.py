"""The day's close: the commission of the agency that places the promotions, and the word to finance."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from sagas import Rejected, Step, action


@dataclass(frozen=True)
class Commission:
    """The payment to the agency for a day. ``id`` is the key of the step that paid it."""

    id: str
    amount: Decimal


@action("finance.pay", connection="shop")
async def pay(step: Step, day: str, amount: Decimal) -> Commission:
    """Pay the commission on a day's sales, up to what may be paid for one day."""
    agency = await step.sql.one("select name, day_limit from agency")
    if amount > agency.day_limit:
        raise Rejected(
            f"the commission is refused: {amount} for {day}, and {agency.name} gets {agency.day_limit} a day at most",
            day=day,
            wanted=str(amount),
            limit=str(agency.day_limit),
        )
    await step.sql.execute(
        "insert into commission (id, day, agency, amount, state) "
        "values (:id, cast(:day as date), :agency, :amount, 'paid')",
        id=step.key,
        day=day,
        agency=agency.name,
        amount=amount,
    )
    return Commission(step.key, amount)


@action("finance.reclaim", connection="shop", rejects=False)
async def reclaim(step: Step, commission: str) -> None:
    """Get a commission back."""
    await step.sql.one(
        "update commission set state = 'reclaimed' where id = :id and state = 'paid' returning id", id=commission
    )


@action("finance.draft", connection="shop", rejects=False)
async def draft(step: Step, day: str, sales: Decimal, commission: Decimal) -> None:
    """Write down what finance is going to be told."""
    await step.sql.execute(
        "insert into finance_note (id, saga_id, day, sales, commission, state) "
        "values (:id, :saga, cast(:day as date), :sales, :commission, 'drafted')",
        id=step.key,
        day=day,
        saga=step.saga_id,
        sales=sales,
        commission=commission,
    )


@action("finance.send", connection="shop", rejects=False)
async def send(step: Step, day: str, sales: Decimal, commission: Decimal) -> None:
    """Tell finance: the day is closed."""
    await _change(step, before="drafted", after="sent")


@action("finance.discard", connection="shop", rejects=False)
async def discard(step: Step, day: str, sales: Decimal, commission: Decimal) -> None:
    """Throw away what finance was never told."""
    await step.sql.one(
        "delete from finance_note where saga_id = :saga and state = 'drafted' returning saga_id", saga=step.saga_id
    )


@action("finance.correct", connection="shop", rejects=False)
async def correct(step: Step, day: str, sales: Decimal, commission: Decimal) -> None:
    """Tell finance that the day is open again: the earlier note does not count."""
    await _change(step, before="sent", after="corrected")


async def _change(step: Step, *, before: str, after: str) -> None:
    await step.sql.one(
        "update finance_note set state = :after where saga_id = :saga and state = :before returning saga_id",
        saga=step.saga_id,
        before=before,
        after=after,
    )
