"""Inputs that the tests play here, the process that they kill, and the invariant that must hold after each run."""

from __future__ import annotations

SUCCESS = {"account": "anna", "units": 4}
FAILURE = {"account": "ben", "units": 2}  # he has not enough money
KILLED = {"account": "anna", "units": 3}
KILL = ("worker", "in the balance", "locked", ("shop", "select from account for update"))

INVARIANT = "what left the inventory was paid and sent, and the refusal of the balance is recorded once"
READS = {
    "taken": ("shop", "select 100 - units from inventory"),
    "paid": ("shop", "select 103 - sum(balance)::int from account"),
    "sent": ("shop", "select coalesce(sum(units), 0)::int from parcel"),
    "refusals": ("shop", "select json_agg(account) from refusal"),
}


def holds(taken: int, paid: int, sent: int, refusals: list) -> bool:
    return taken == sent and paid == 5 * sent and refusals == ["ben"]
