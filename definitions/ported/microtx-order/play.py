"""Inputs that the tests play here, the process that they kill, and the invariant that must hold after each run."""

from __future__ import annotations

SUCCESS = {"goods": "lamp", "price": 30}
FAILURE = {"goods": "lamp", "price": 500}  # more than the wallet has
KILLED = {"goods": "lamp", "price": 20}
KILL = ("worker", "before an answer", "frozen", "receiver.py")

INVARIANT = "as much is sold as is paid, nothing stays reserved, and what was refused was never cancelled"
READS = {"state": ("services", "/")}


def holds(state: dict) -> bool:
    sold, paid = state["final"].get("lamp", 0), state["final"].get("money", 0)
    return (sold, paid) in [(0, 0), (1, 20), (2, 50)] and not state["held"] and not state["cancelled_refusals"]
