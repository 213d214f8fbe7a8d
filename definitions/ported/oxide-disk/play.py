"""Inputs that the tests play here, the process that they kill, and the invariant that must hold after each run."""

from __future__ import annotations

SUCCESS = {"disk": "d1", "size": 30}
FAILURE = {"disk": "d2", "size": 500}  # no server has that much room
KILLED = {"disk": "d3", "size": 20}
KILL = ("worker", "between two regions", "locked", ("rack", "select from server where id = 's2' for update"))

INVARIANT = "every disk is ready, with three regions of its size, and nothing else takes room"
READS = {
    "taken": ("rack", "select 310 - sum(room)::int from server"),
    "sizes": ("rack", "select coalesce(sum(size), 0)::int from disk"),
    "unready": ("rack", "select count(*)::int from disk where state <> 'ready'"),
}


def holds(taken: int, sizes: int, unready: int) -> bool:
    return taken == 3 * sizes and unready == 0
