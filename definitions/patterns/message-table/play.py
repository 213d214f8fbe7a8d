"""The sagas that `make patterns` starts here, the processes it kills, and the invariant of each run."""

from __future__ import annotations

SUCCESS = {"order": "chairs", "amount": 300}
FAILURE = {"order": "castle", "amount": 5000}  # more than the budget
KILLED = {"order": "tables", "amount": 200}
KILL = ("trigger", "before the consumer's commit", "locked", ("finance", "select from budget for update"))

INVARIANT = "every placed order is booked once, and no other is"
READS = {
    "placed": ("shop", "select coalesce(json_agg(id order by id), '[]') from orders where state = 'placed'"),
    "booked": ("finance", "select coalesce(json_agg(order_id order by order_id), '[]') from booking"),
    "spent": ("finance", "select 1000 - sum(free)::int from budget"),
    "amount": ("finance", "select coalesce(sum(amount), 0)::int from booking"),
}


def holds(placed: list[str], booked: list[str], spent: int, amount: int) -> bool:
    return placed == booked and spent == amount
