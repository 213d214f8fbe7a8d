"""A broker that, when it starts again, may forget the end of a transaction (KAFKA-20734).

It looks for transactions that are too old all the time: so it gives one up while it starts, at the moment when its
partitions have no leader, and drops the markers that it owes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.helpers.kafka_broker import Broker

TIMEOUT = 3.0
"""Seconds a transaction may last: less than a broker needs to start."""

MAX_ATTEMPTS = 8
"""It is a matter of milliseconds whether the broker forgets, and most times it does."""


def start_lossy_broker(folder: Path) -> Broker:
    """It runs."""
    broker = Broker(folder, more={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "10"})
    broker.start()
    return broker


def lose_transaction_end(broker: Broker, topic: str, write: Callable[[], None]) -> None:
    """Until the broker has forgotten the end of what ``write`` has written in ``topic``, and left open."""
    for _ in range(MAX_ATTEMPTS):
        write()
        broker.kill()
        time.sleep(TIMEOUT)
        broker.start()
        time.sleep(TIMEOUT)
        if not broker.is_settled(topic):
            return
    raise AssertionError("the broker has forgotten nothing: is it mended?")
