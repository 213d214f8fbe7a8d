"""The sagas that `make patterns` starts here, the processes it kills, and the invariant of each run."""

from __future__ import annotations

SUCCESS = [{"account": "anna", "percent": percent} for percent in (10, 20, 30)]  # at the same time
FAILURE = [{"account": "ben", "percent": 60}, {"account": "ben", "percent": 70}]  # one waits for an approval
FAILURE_NOTE = "one of two: locked"
KILLED = {"account": "anna", "percent": 50}
KILL = ("worker", "with the lock", "locked", ("shop", "select from account for update"))

INVARIANT = "no update is lost: a balance is its beginning and its entries; no lock stays"
READS = {
    "balances": ("shop", "select sum(balance)::int from account"),
    "entries": ("shop", "select coalesce(sum(amount), 0)::int from entry"),
    "locks": ("shop", "select count(*) from saga_lock"),
    "first": ("saga", "semantic-lock-failure"),
    "second": ("saga", "semantic-lock-failure-2"),
}


def holds(balances: int, entries: int, locks: int, first: dict, second: dict) -> bool:
    reasons = {first["reason"]["kind"], second["reason"]["kind"]}
    return balances == 2000 + entries and locks == 0 and reasons == {"rejected", "locked"}
