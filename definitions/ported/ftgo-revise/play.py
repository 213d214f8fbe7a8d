"""Inputs that the tests play here, the process that they kill, and the invariant that must hold after each run."""

from __future__ import annotations

SUCCESS = {"order": "lunch", "portions": 5}
FAILURE = {"order": "lunch", "portions": 50}  # more than the card allows
KILLED = {"order": "lunch", "portions": 3}
KILL = ("worker", "in the authorisation", "locked", ("shop", "select from card for update"))

INVARIANT = "order, ticket and card agree, and nothing is pending"
READS = {
    "order": ("shop", "select json_build_array(portions, state) from orders"),
    "ticket": ("shop", "select json_build_array(portions, pending) from ticket"),
    "authorised": ("shop", "select authorised from card"),
}


def holds(order: list, ticket: list, authorised: int) -> bool:
    return order[1] == "APPROVED" and ticket == [order[0], None] and authorised == 9 * order[0]
