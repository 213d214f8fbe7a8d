"""The service with the saga, for hypercorn: `hypercorn benchmarks.peers.restate.service:app`.

As in Restate's guide: each step in `ctx.run`, its compensation registered before it, a terminal error where a retry
would not help. The barrier row makes the effect of a repeated step idempotent; the database is DATABASE_URL.
"""

# The SDK reads the types of handlers from their annotations, so these must be no strings.
# ruff: noqa: I002

import os
from collections.abc import Awaitable, Callable
from typing import Any

import restate
from restate import Context, RunOptions, Service
from restate.exceptions import TerminalError

from benchmarks.no_engine import Payment
from benchmarks.peers.accounts import BarrierAccounts, ImpossibleEffect, calls, open_pool

payments = Service("payments")
pool = open_pool(os.environ["DATABASE_URL"])
accounts = BarrierAccounts(pool)


@payments.handler()
async def pay(ctx: Context, told: dict[str, Any]) -> bool:
    """Run the saga ``told["id"]``; False if it was compensated."""
    compensations: list[Callable[[], Awaitable[None]]] = []
    payment = Payment(**told["payment"])
    try:
        for number, call in enumerate(calls(told["id"], payment)):

            async def undo(number: int = number, call: tuple[str, str, int] = call) -> None:
                await ctx.run_typed(f"undo{number}", give_back, RunOptions(), *call)

            compensations.append(undo)
            await ctx.run_typed(f"do{number}", take, RunOptions(), *call)
    except TerminalError:
        for compensation in reversed(compensations):
            await compensation()
        return False
    return True


async def take(key: str, account: str, amount: int) -> None:
    try:
        await accounts.take(key, account, amount)
    except ImpossibleEffect as error:
        raise TerminalError(str(error)) from error


async def give_back(key: str, account: str, amount: int) -> None:
    await accounts.give_back(key, account, amount)


served = restate.app([payments])


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Restate's ASGI application; the pool is opened in the loop of its first request."""
    if pool.closed:
        await pool.open()
    await served(scope, receive, send)
