"""The sagas that `make patterns` starts here, the processes it kills, and the invariant of each run."""

from __future__ import annotations

SUCCESS = {"order": "chairs"}
FAILURE = {"order": "nobody-home"}  # the receiver never accepts it
FAILURE_STATE = "COMPLETED"  # which does not concern the order
FAILURE_NOTE = "notification EXHAUSTED"
KILLED = {"order": "tables"}
KILL = ("worker", "before the receiver's answer", "frozen", "receiver.py")

INVARIANT = "the receiver counts each order once, and no order depends on the receiver"
READS = {
    "orders": ("shop", "select json_agg('notification-' || id order by id) from orders"),
    "events": ("receiver", "/"),
    "given_up": ("saga", "notification-nobody-home"),
}


def holds(orders: list[str], events: dict[str, dict], given_up: dict) -> bool:
    accepted = sorted(event["saga"] for event in events.values() if event["accepted"])
    states = [row["state"] for row in given_up["notifications"]]
    return accepted == [order for order in orders if order != "notification-nobody-home"] and states == ["EXHAUSTED"]
