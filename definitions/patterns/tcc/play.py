"""The sagas that `make patterns` starts here, the processes it kills, and the invariant of each run."""

from __future__ import annotations

SUCCESS = {"flight": "oslo", "town": "oslo"}
FAILURE = {"flight": "oslo", "town": "bergen"}
KILLED = {"flight": "oslo", "town": "oslo"}
KILL = ("worker", "in the second try", "locked", ("hotel", "select from room for update"))

INVARIANT = "as many seats as rooms are sold, and none is held for nobody"
READS = {
    "seats": ("airline", "select json_build_array(sum(free), sum(held), sum(sold)) from flight"),
    "rooms": ("hotel", "select json_build_array(sum(free), sum(held), sum(sold)) from room"),
}


def holds(seats: list[int], rooms: list[int]) -> bool:
    return seats == rooms and sum(seats) == 10 and seats[1] == 0
