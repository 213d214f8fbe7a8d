"""The sagas that `make patterns` starts here, the processes it kills, and the invariant of each run."""

from __future__ import annotations

SUCCESS = {"order": "chairs", "account": "rich", "amount": 300}
FAILURE = {"order": "castle", "account": "poor", "amount": 5000}
KILLED = {"order": "tables", "account": "rich", "amount": 200}
KILL = ("worker", "in the payment, the event is held", "locked", ("bank", "select from account for update"))

INVARIANT = "an event is in the topic once for each payment, and for nothing else"
READS = {
    "events": ("topic", "order-paid"),
    "paid": ("bank", "select coalesce(json_agg(order_id order by order_id), '[]') from payment"),
    "written": ("shop", "select coalesce(json_agg(id order by id), '[]') from orders"),
}


def holds(events: list[str], paid: list[str], written: list[str]) -> bool:
    return sorted(events) == paid == written
