"""Inputs that the tests play here, the process that they kill, and the invariant that must hold after each run."""

from __future__ import annotations

SUCCESS = {"order": "o1", "item": "pen"}
FAILURE = {"order": "o2", "item": "piano"}  # no truck takes it
KILLED = {"order": "o3", "item": "pen"}
KILL = ("worker", "in the payment", "locked", ("shop", "lock table payment in exclusive mode"))

INVARIANT = "an order is reserved, paid and shipped, or none of them"
READS = {
    "reserved": ("shop", "select 11 - sum(free)::int from stock"),
    "paid": ("shop", "select count(*)::int from payment"),
    "shipped": ("shop", "select count(*)::int from shipment"),
}


def holds(reserved: int, paid: int, shipped: int) -> bool:
    return reserved == paid == shipped
