"""From the topic `payments` to the topic `payments-in-euros`. `saga trigger` runs this."""

from __future__ import annotations

from sagas import Message, bridge

RATES = {"EUR": 100, "NOK": 9, "SEK": 8}
"""Euro cents for one unit of the currency."""


@bridge("payments", to="payments-in-euros", max_attempts=1)
def convert(message: Message) -> object:
    """One payment in, one out: output and offset are one transaction of Kafka. An unknown currency is a dead letter."""
    payment = message.value
    return {"id": payment["id"], "cents": payment["amount"] * RATES[payment["currency"]]}
