"""A broker that may lose the end of a transaction on restart (KAFKA-20734).

It checks for expired transactions constantly: so it aborts one during its start, while its partitions have no leader,
and drops the markers it should write.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.helpers.kafka_broker import BrokerProcess

TIMEOUT = 3.0
"""Seconds a transaction may last: less than a broker needs to start."""

MAX_ATTEMPTS = 8
"""The race is decided within milliseconds, and most restarts lose the end."""


def start_lossy_broker(folder: Path) -> BrokerProcess:
    """Start a broker that can lose the end of a transaction when it restarts."""
    broker = BrokerProcess(folder, more={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "10"})
    broker.start()
    return broker


def lose_transaction_end(broker: BrokerProcess, topic: str, write: Callable[[], None]) -> None:
    """Restart the broker until it has lost the end of the transaction that ``write`` left open in ``topic``."""
    for _ in range(MAX_ATTEMPTS):
        write()
        broker.kill()
        time.sleep(TIMEOUT)
        broker.start()
        time.sleep(TIMEOUT)
        if not broker.is_settled(topic):
            return
    raise AssertionError("the broker has lost no transaction end: is KAFKA-20734 fixed?")
