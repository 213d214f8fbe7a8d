"""The sagas that `make patterns` starts here, the processes it kills, and the invariant of each run."""

from __future__ import annotations

SUCCESS = {"payments": [{"id": "last", "amount": 1, "currency": "NOK"}]}
FAILURE = {"payments": [{"id": "unknown", "amount": 5, "currency": "XXX"}]}
FAILURE_STATE = "COMPLETED"  # the payment is published, but cannot be converted
FAILURE_NOTE = "dead letter"
KILLED = {"payments": [{"id": f"{number}", "amount": number, "currency": "NOK"} for number in range(400)]}
KILL = ("trigger", "in a transaction of Kafka", "transaction", "payments-in-euros")

INVARIANT = "every payment is converted once, or a dead letter once"
READS = {
    "payments": ("topic", "payments"),
    "converted": ("topic", "payments-in-euros"),
    "dead": ("topic", "payments.dlq"),
}


def holds(payments: list[dict], converted: list[dict], dead: list[dict]) -> bool:
    return sorted(record["id"] for record in [*converted, *dead]) == sorted(record["id"] for record in payments)
