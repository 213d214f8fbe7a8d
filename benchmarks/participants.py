"""The participants of `benchmarks.support.handwritten` as actions of this engine."""

from __future__ import annotations

from sagas import Step, action


@action("bench.noop", rejects=False)
async def noop(account: str, amount: int) -> int:
    """Do nothing."""
    return amount


@action("bench.debit", connection="bench", rejects=False)
async def debit(step: Step, account: str, amount: int) -> int:
    """Take from the account."""
    await step.sql.execute("update account set balance = balance - :amount where id = :id", amount=amount, id=account)
    return amount


@action("bench.credit", connection="bench", rejects=False)
async def credit(step: Step, account: str, amount: int) -> int:
    """Give back to the account."""
    await step.sql.execute("update account set balance = balance + :amount where id = :id", amount=amount, id=account)
    return amount
