"""The household's account: charged at once, or held first and captured later (the TCC form)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sagas import Rejected, Step, action


@dataclass(frozen=True)
class Charge:
    """Money taken from, or held on, an account. ``id`` is the key of the step that did it."""

    id: str
    amount: Decimal


@action("payments.charge", connection="shop")
async def charge(step: Step, account: str, basket: str, amount: Decimal) -> Charge:
    """Charge a household's account, within its spending limit."""
    await _take(step, account, amount, into="charged")
    return await _record(step, account, basket, amount, state="charged")


@action("payments.refund", connection="shop", rejects=False)
async def refund(step: Step, charge: str) -> None:
    """Give the money of a charge back."""
    await _give_back(step, charge, column="charged", before="charged", after="refunded")


@action("payments.authorise", connection="shop")
async def authorise(step: Step, account: str, basket: str, amount: Decimal) -> Charge:
    """Hold money on a household's account without taking it."""
    await _take(step, account, amount, into="held")
    return await _record(step, account, basket, amount, state="held")


@action("payments.capture", connection="shop", rejects=False)
async def capture(step: Step, charge: str) -> None:
    """Take the money that was held."""
    row = await _change(step, charge, before="held", after="charged")
    await step.sql.execute(
        "update account set held = held - :amount, charged = charged + :amount where household_id = :account",
        amount=row.amount,
        account=row.household_id,
    )


@action("payments.void", connection="shop", rejects=False)
async def void(step: Step, charge: str) -> None:
    """Let go of money that was held."""
    await _give_back(step, charge, column="held", before="held", after="voided")


# `column` and `into` below are names written in this file, never values from outside.


async def _take(step: Step, account: str, amount: Decimal, *, into: str) -> None:
    taken = await step.sql.one_or_none(
        f"update account set available = available - :amount, {into} = {into} + :amount "
        "where household_id = :account and available >= :amount returning household_id",
        account=account,
        amount=amount,
    )
    if taken is None:
        purse = await step.sql.one_or_none(
            "select available, spending_limit from account where household_id = :account", account=account
        )
        if purse is None:
            raise Rejected(f"household {account} has no account", account=account)
        raise Rejected(
            f"declined: {amount} wanted, {purse.available} left of a limit of {purse.spending_limit}",
            account=account,
            wanted=str(amount),
            available=str(purse.available),
        )


async def _record(step: Step, account: str, basket: str, amount: Decimal, *, state: str) -> Charge:
    await step.sql.execute(
        "insert into charge (id, household_id, basket_id, amount, state) "
        "values (:id, :account, :basket, :amount, :state)",
        id=step.key,
        account=account,
        basket=basket,
        amount=amount,
        state=state,
    )
    return Charge(step.key, amount)


async def _change(step: Step, charge: str, *, before: str, after: str) -> Any:
    """The charge's row. Raises when it is not in the state ``before``: then no money may be moved."""
    return await step.sql.one(
        "update charge set state = :after where id = :charge and state = :before returning household_id, amount",
        charge=charge,
        before=before,
        after=after,
    )


async def _give_back(step: Step, charge: str, *, column: str, before: str, after: str) -> None:
    row = await _change(step, charge, before=before, after=after)
    await step.sql.execute(
        f"update account set {column} = {column} - :amount, available = available + :amount "
        "where household_id = :account",
        amount=row.amount,
        account=row.household_id,
    )
