"""The sagas that `make patterns` starts here, the processes it kills, and the invariant of each run."""

from __future__ import annotations

SUCCESS = {"from": "anna", "to": "ben", "amount": 30}
FAILURE = {"from": "anna", "to": "nobody", "amount": 20}
KILLED = {"from": "anna", "to": "ben", "amount": 10}
KILL = ("worker", "in the deposit", "locked", ("south", "select from account for update"))

INVARIANT = "no money is lost or made"
READS = {
    "north": ("north", "select sum(balance)::int from account"),
    "south": ("south", "select sum(balance)::int from account"),
    "sent": ("north", "select count(*)::int from statement"),
}


def holds(north: int, south: int, sent: int) -> bool:
    return north + south == 400 and (south > 200) == (sent > 0)
