"""Inputs that the tests play here, the process that they kill, and the invariant that must hold after each run."""

from __future__ import annotations

SUCCESS = {"order": "o1", "customer": "anna", "amount": 30}
FAILURE = {"order": "o2", "customer": "anna", "amount": 500}  # more than her credit
KILLED = {"order": "o3", "customer": "anna", "amount": 20}
KILL = ("worker", "in the credit", "locked", ("customers", "select from customer for update"))

INVARIANT = "approved orders and no others have credit, and the rejected one says why"
READS = {
    "reserved": ("customers", "select 100 - credit from customer"),
    "states": ("orders", "select json_object_agg(id, state) from orders"),
    "reason": ("orders", "select reason from orders where id = 'o2'"),
}


def holds(reserved: int, states: dict, reason: str) -> bool:
    amounts = {"o1": 30, "o3": 20}
    approved = sum(amounts.get(order, 1000) for order, state in states.items() if state == "APPROVED")
    return reserved == approved and states["o2"] == "REJECTED" and reason == "the credit limit is exceeded"
