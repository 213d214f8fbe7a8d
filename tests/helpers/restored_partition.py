"""A broker whose disk gets an older copy of a partition: its last records are gone, and others take their offsets."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.helpers.kafka_broker import BrokerProcess


def keep_partition(broker: BrokerProcess, folder: Path, topic: str) -> Callable[[], None]:
    """Copy partition 0 of the topic; the function that is returned puts the copy in its place. The broker starts again
    both times.
    """
    [log] = folder.rglob(f"{topic}-0")
    copy = folder / f"{topic}.copy"
    broker.stop()
    shutil.copytree(log, copy)
    broker.start()

    def restore() -> None:
        broker.stop()
        shutil.rmtree(log)
        shutil.copytree(copy, log)
        broker.start()

    return restore
