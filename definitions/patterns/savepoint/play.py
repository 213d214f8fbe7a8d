"""The sagas that `make patterns` starts here, the processes it kills, and the invariant of each run."""

from __future__ import annotations

SUCCESS = {"units": 20}  # the bicycle has no room for them, the van has
FAILURE = {"units": 300}  # no carrier has room for them
KILLED = {"units": 1}
KILL = ("worker", "while loading", "locked", ("shop", "select from carrier for update"))

INVARIANT = "every chair that is taken is loaded, on one carrier"
READS = {
    "taken": ("shop", "select sum(taken)::int from stock"),
    "loaded": ("shop", "select sum(loaded)::int from carrier"),
}


def holds(taken: int, loaded: int) -> bool:
    return taken == loaded
