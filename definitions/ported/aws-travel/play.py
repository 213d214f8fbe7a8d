"""Inputs that the tests play here, the process that they kill, and the invariant that must hold after each run."""

from __future__ import annotations

SUCCESS = {"customer": "anna", "city": "lima"}
FAILURE = {"customer": "ben", "city": "oslo"}  # it has no car
KILLED = {"customer": "eva", "city": "lima"}
KILL = ("worker", "in the booking of the car", "locked", ("shop", "select from offer where kind = 'car' for update"))

INVARIANT = "each trip that is paid has its three bookings, no other has one, and who is refused is told once"
READS = {
    "booked": ("shop", "select 45 - sum(free)::int from offer"),
    "paid": ("shop", "select count(*)::int from payment"),
    "told": ("shop", "select json_agg(json_build_array(customer, reason)) from notice"),
}


def holds(booked: int, paid: int, told: list) -> bool:
    return booked == 3 * paid and told == [["ben", "no car is free"]]
