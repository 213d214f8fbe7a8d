"""The balances before and after a round, compared with what its sagas should have taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg

from benchmarks.no_engine import STEPS, Payment


@dataclass(frozen=True, slots=True)
class Mistakes:
    """Amounts that sagas should have taken and are still there, or were taken and should not be, and sagas that told
    a wrong outcome."""

    lost: int = 0
    doubled: int = 0
    wrong: int = 0

    def __add__(self, other: Mistakes) -> Mistakes:
        return Mistakes(self.lost + other.lost, self.doubled + other.doubled, self.wrong + other.wrong)


def balances(url: str) -> dict[str, int]:
    with psycopg.connect(url) as connection:
        return dict(connection.execute("select id, balance from account").fetchall())


def mistakes(
    before: Mapping[str, int], after: Mapping[str, int], payments: Sequence[Payment], succeeded: Sequence[bool]
) -> Mistakes:
    """Compare account by account, so that a lost and a doubled effect of two accounts do not hide each other."""
    due = Counter[str]()
    for payment in payments:
        if payment.succeeds:
            due[payment.account] += STEPS * payment.amount
    differences = [before[id] - after[id] - due[id] for id in before]
    return Mistakes(
        lost=-sum(difference for difference in differences if difference < 0),
        doubled=sum(difference for difference in differences if difference > 0),
        wrong=sum(told != payment.succeeds for payment, told in zip(payments, succeeded, strict=True)),
    )
