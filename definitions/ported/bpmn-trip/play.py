"""Inputs that the tests play here, the process that they kill, and the invariant that must hold after each run."""

from __future__ import annotations

SUCCESS = {"trip": "t1", "flight": "early"}
FAILURE = {"trip": "t2", "flight": "late"}  # it is full
KILLED = {"trip": "t3", "flight": "early"}
KILL = ("worker", "in the flight", "locked", ("shop", "select from flight for update"))

INVARIANT = "a trip has a car, a hotel and a seat, or nothing"
READS = {
    "booked": ("shop", "select count(*)::int from booking"),
    "seats": ("shop", "select 10 - sum(seats)::int from flight"),
}


def holds(booked: int, seats: int) -> bool:
    return booked == 2 * seats
