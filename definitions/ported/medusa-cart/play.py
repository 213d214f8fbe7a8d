"""Inputs that the tests play here, the process that they kill, and the invariant that must hold after each run."""

from __future__ import annotations

SUCCESS = {"cart": "c3"}  # again: the killed run has completed it
FAILURE = {"cart": "c2"}  # sold out
KILLED = {"cart": "c3"}
KILL = ("worker", "in the reservation", "locked", ("shop", "select from stock for update"))

INVARIANT = "each order took one item, however often its cart is completed"
READS = {
    "taken": ("shop", "select 5 - sum(free)::int from stock"),
    "orders": ("shop", "select count(order_id)::int from cart"),
}


def holds(taken: int, orders: int) -> bool:
    return taken == orders
