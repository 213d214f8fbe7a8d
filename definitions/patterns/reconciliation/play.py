"""The sagas that `make patterns` starts here, the processes it kills, and the invariant of each run."""

from __future__ import annotations

SUCCESS = {"day": "monday"}  # one booking is missing
FAILURE = {"day": "tuesday"}  # one is missing, and one has no order, which no repair may decide
KILLED = {"day": "wednesday"}
KILL = ("worker", "in the repair", "locked", ("finance", "lock table booking in share mode"))

INVARIANT = "no order is booked twice, and a day that still differs is as it was"
READS = {
    "booked": ("finance", "select json_agg(order_id order by order_id) from booking"),
    "repaired": (
        "finance",
        "select coalesce(json_agg(order_id order by order_id), '[]') from booking where repaired_by is not null",
    ),
}


def holds(booked: list[str], repaired: list[str]) -> bool:
    return len(set(booked)) == len(booked) and set(booked) - set(repaired) == {"a", "c", "x"} and "d" not in booked
