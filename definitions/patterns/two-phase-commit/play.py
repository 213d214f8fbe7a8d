"""The sagas that `make patterns` starts here, the processes it kills, and the invariant of each run."""

from __future__ import annotations

SUCCESS = {"product": "pear", "units": 30}
FAILURE = {"product": "pear", "units": 500}
KILLED = {"product": "pear", "units": 10}
KILL = ("worker", "one transaction is prepared", "locked", ("south", "select from stock for update"))

INVARIANT = "no goods are lost or made, and no transaction stays prepared"
READS = {
    "north": ("north", "select sum(free)::int from stock"),
    "south": ("south", "select sum(free)::int from stock"),
    "prepared": ("north", "select count(*) from pg_prepared_xacts where database like 'two-phase-commit-%'"),
}


def holds(north: int, south: int, prepared: int) -> bool:
    return north + south == 200 and prepared == 0
