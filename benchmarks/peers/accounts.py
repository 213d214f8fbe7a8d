"""The effects of peers that may repeat a step: each in a transaction with its barrier row, as careful people write it.

A repeated call changes nothing, an undo without its action gives nothing back, and an action that comes after its undo
does nothing.
"""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection, errors
from psycopg_pool import AsyncConnectionPool

from benchmarks.no_engine import STEPS, Payment

CONNECTIONS = 20

_BARRIER = "insert into hand_barrier (key, op, result) values (%s, %s, '1') on conflict do nothing"
_CHANGE = "update account set balance = balance - %s where id = %s"


class ImpossibleEffect(Exception):
    """The effect is not possible, now and later: there is no such account, or not enough on it."""


def calls(id: str, payment: Payment) -> list[tuple[str, str, int]]:
    """Key, account and amount of each step."""
    return [
        (f"{id}/{step}", payment.second, payment.amount + payment.excess)
        if step == 1
        else (f"{id}/{step}", payment.account, payment.amount)
        for step in range(STEPS)
    ]


def open_pool(url: str) -> AsyncConnectionPool[AsyncConnection[Any]]:
    """A pool that the caller opens."""
    return AsyncConnectionPool(url, min_size=CONNECTIONS, max_size=CONNECTIONS, open=False, timeout=60)


class BarrierAccounts:
    """Takes from accounts and gives back."""

    def __init__(self, pool: AsyncConnectionPool[AsyncConnection[Any]]) -> None:
        self._pool = pool

    async def take(self, key: str, account: str, amount: int) -> None:
        """Raises ImpossibleEffect if that is not possible."""
        try:
            async with self._pool.connection() as connection, connection.transaction():
                if await self._is_first(connection, key, "do"):
                    changed = await connection.execute(_CHANGE, (amount, account))
                    if changed.rowcount == 0:
                        raise ImpossibleEffect(f"there is no account {account}")
        except errors.CheckViolation as error:
            raise ImpossibleEffect(f"not enough on {account}") from error

    async def give_back(self, key: str, account: str, amount: int) -> None:
        async with self._pool.connection() as connection, connection.transaction():
            was_never_done = await self._is_first(connection, key, "do")
            if await self._is_first(connection, key, "undo") and not was_never_done:
                await connection.execute(_CHANGE, (-amount, account))

    @staticmethod
    async def _is_first(connection: AsyncConnection[Any], key: str, op: str) -> bool:
        return (await connection.execute(_BARRIER, (key, op))).rowcount == 1
