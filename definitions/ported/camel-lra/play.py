"""Inputs that the tests play here, the process that they kill, and the invariant that must hold after each run."""

from __future__ import annotations

SUCCESS = {"train": "ice1", "account": "anna"}
FAILURE = {"train": "ice1", "account": "ben"}  # he has not enough money
KILLED = {"train": "ice2", "account": "anna"}
KILL = ("worker", "before the answer of the train service", "frozen", "receiver.py")

INVARIANT = "each seat is complete and paid once, and no other seat is taken"
READS = {
    "seats": ("shop", "select coalesce(json_agg(state), '[]') from seat"),
    "paid": ("shop", "select 105 - sum(balance)::int from account"),
}


def holds(seats: list, paid: int) -> bool:
    return set(seats) <= {"complete"} and 10 * len(seats) == paid
