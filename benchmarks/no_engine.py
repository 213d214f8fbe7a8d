"""The yardstick of bulk execution: three transactions with a barrier row for each saga, and no engine at all.

Threads, with one connection each: no other program that we have tried is as fast. What survives a crash is up to the
reader: nobody goes on with a saga whose process has died.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

STEPS = 3
THREADS = 16
BALANCE = 1_000_000_000
MOST = 20
"""The largest amount of a saga that succeeds."""

_BARRIER = "insert into hand_barrier (key, op, result) values (%s, %s, '1') on conflict do nothing"
_CHANGE = "update account set balance = balance - %s where id = %s"


@dataclass(frozen=True, slots=True)
class Payment:
    """The amount that one saga takes. ``second``: the account of its second step; ``excess``: what that takes more.

    An account that does not exist makes the saga a rejected one; an excess above the balance violates a constraint.
    """

    account: str
    amount: int
    second: str
    excess: int

    @property
    def succeeds(self) -> bool:
        return self.second == self.account and self.excess == 0


def payments(seed: str, count: int, accounts: int, rejected: float, violating: float) -> Iterator[Payment]:
    """The payments of a run: random amounts from random accounts. These fractions of them fail in their second step."""
    chance = random.Random(seed)
    for _ in range(count):
        account, amount, fate = f"a{chance.randrange(accounts)}", chance.randint(1, MOST), chance.random()
        fails = fate < rejected
        excess = 10 * BALANCE if rejected <= fate < rejected + violating else 0
        yield Payment(account, amount, "none" if fails else account, excess)


def run_sagas(url: str, run: str, todo: Iterator[Payment]) -> None:
    """Run a saga for each payment; ``run`` makes their keys unique."""
    lock, numbered = threading.Lock(), enumerate(todo)

    def work() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while True:
                with lock:
                    number, payment = next(numbered, (0, None))
                if payment is None:
                    return
                run_saga(connection, f"{run}-{number}", payment)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_saga(connection: psycopg.Connection[Any], id: str, payment: Payment) -> bool:
    """Run the three steps; False if one is not possible, and those before it are undone."""
    for step in range(STEPS):
        account = payment.second if step == 1 else payment.account
        amount = payment.amount + (payment.excess if step == 1 else 0)
        try:
            _perform(connection, f"{id}/{step}", "do", amount, account)
        except (_NoRow, psycopg.errors.CheckViolation):
            for done in reversed(range(step)):
                _perform(connection, f"{id}/{done}", "undo", -payment.amount, payment.account)
            return False
    return True


class _NoRow(Exception):
    """A statement has found no row."""


def _perform(connection: psycopg.Connection[Any], key: str, op: str, amount: int, account: str) -> None:
    with connection.transaction():
        is_first = connection.execute(_BARRIER, (key, op)).rowcount == 1
        if is_first and connection.execute(_CHANGE, (amount, account)).rowcount == 0:
            raise _NoRow
