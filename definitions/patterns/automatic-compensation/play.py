"""The sagas that `make patterns` starts here, the processes it kills, and the invariant of each run."""

from __future__ import annotations

SUCCESS = {"product": "pear", "units": 30, "account": "rich"}
FAILURE = {"product": "pear", "units": 20, "account": "poor"}
KILLED = {"product": "pear", "units": 10, "account": "rich"}
KILL = ("worker", "in the payment", "locked", ("bank", "select from account for update"))

INVARIANT = "what is gone from the shelf is paid, and no row stays locked"
READS = {
    "gone": ("shop", "select 200 - sum(free)::int from stock"),
    "paid": ("bank", "select 1000 - sum(balance)::int from account"),
    "locked": ("shop", "select count(*) from saga_row_lock"),
}


def holds(gone: int, paid: int, locked: int) -> bool:
    return gone == paid and locked == 0
