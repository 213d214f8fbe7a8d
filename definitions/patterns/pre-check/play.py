"""The sagas that `make patterns` starts here, the processes it kills, and the invariant of each run."""

from __future__ import annotations

SUCCESS = {"product": "bicycle", "account": "rich", "price": 40}
FAILURE = {"product": "bicycle", "account": "poor", "price": 40}
KILLED = {"product": "bicycle", "account": "rich", "price": 50}
KILL = ("worker", "in the payment", "locked", ("bank", "select from account for update"))

INVARIANT = "what is taken is paid, and a saga that a check refused has touched nothing"
READS = {
    "taken": ("shop", "select sum(taken)::int from stock"),
    "paid": ("bank", "select sum(paid)::int from account"),
    "touched": (
        "shop",
        "select count(*) from saga_guard where saga_id = 'pre-check-failure' and step not like '%.check'",
    ),
}


def holds(taken: int, paid: int, touched: int) -> bool:
    return taken == paid and touched == 0
