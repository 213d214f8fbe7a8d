"""The end of a topic, and what an open transaction hides before that end.

A partition ends at its high watermark. A read_committed consumer reaches only the last stable offset: it sees nothing
from the first record of an open transaction on, of whatever producer, also what others have committed after it. A
reader that takes the last stable offset for the end repeats or loses what is hidden. So a reader that decides by the
content of a topic asks here: what can be read, what is hidden, and whether that matters to the decision, in which case
it waits.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError, PartitionOffsets
from sagas.settings import KafkaSettings
from sagas.text.shell import shell_command
from sagas.text.shortening import join_names

OffsetRanges = Mapping[int, tuple[int, int]]
"""Partition → the first offset of the range, and the first one after it."""

_NAMED_PARTITIONS = 10


class OpenTransaction(KafkaOperationError):
    """An open transaction hides records on which a decision depends."""


@dataclass(frozen=True, slots=True)
class TopicEnd:
    """The offsets of a topic's partitions at one time. ``servers``: the brokers, for commands."""

    topic: str
    servers: str
    offsets: Mapping[int, PartitionOffsets]

    def readable(self, starts: Mapping[int, int] | None = None) -> OffsetRanges:
        """The ranges that a read_committed consumer can read, from ``starts`` (default: the first records)."""
        return {
            partition: (max(bounds.log_start, (starts or {}).get(partition, 0)), bounds.last_stable)
            for partition, bounds in self.offsets.items()
        }

    def hidden(self) -> OffsetRanges:
        """The ranges behind open transactions, for partitions that have one."""
        return {
            partition: (bounds.last_stable, bounds.high_watermark)
            for partition, bounds in sorted(self.offsets.items())
            if bounds.undecided_records
        }

    def open_transaction(self, reason: str) -> OpenTransaction:
        """The error of a decision that waits; ``reason`` says what depends on the hidden records."""
        return OpenTransaction(f"{reason} behind {self.hidden_text()}; {self.producer_advice()}")

    def hidden_text(self) -> str:
        """The open transactions in words: `an open transaction in orders[0] from offset 12, orders[1] from …`."""
        places = [f"{self.topic}[{partition}] from offset {first}" for partition, (first, _) in self.hidden().items()]
        return f"an open transaction in {join_names(places, _NAMED_PARTITIONS)}"

    def producer_advice(self) -> str:
        """The command that shows the producer of the first open transaction."""
        words = ("--bootstrap-server", self.servers, "describe-producers", "--topic", self.topic)
        first = next(iter(self.hidden()), 0)
        return f"{shell_command('kafka-transactions.sh', *words, '--partition', str(first))} shows its producer"


def topic_end(settings: KafkaSettings, topic: str, *, wait: float = 0.0) -> TopicEnd:
    """The end of a topic at the first look, as soon as every transaction that was open then is decided, or after
    ``wait`` seconds.

    A commit returns before its records can be read, so a reader that starts at once would miss them. Blocks. Raises
    KafkaOperationError.
    """
    cluster = KafkaAdmin(settings)
    first = current = cluster.offsets(topic)
    until = time.monotonic() + wait
    while any(current[partition].last_stable < bounds.high_watermark for partition, bounds in first.items()):
        if time.monotonic() > until:
            break
        time.sleep(0.1)
        current = cluster.offsets(topic)
    ends = {
        partition: replace(bounds, high_watermark=max(bounds.last_stable, first[partition].high_watermark))
        for partition, bounds in current.items()
        if partition in first
    }
    return TopicEnd(topic, settings.servers, ends)
