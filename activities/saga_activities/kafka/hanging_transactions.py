"""Transactions whose end the brokers have lost: found, so that the producer that began them can end them.

A broker that starts again, or moves a partition, may drop the marker that it owes a partition which has no leader at
that moment (KAFKA-20734, brokers 4.1 to 4.3): for the coordinator the transaction is over, for the partition it is open
for ever. Its readers stand still. And the next marker of the same producer there ends both transactions, the lost one
and its own: a commit would make visible what was aborted, and is sent a second time. Everything blocks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from saga_activities.kafka import range_reader
from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError, PartitionOffsets
from saga_activities.kafka.record_codec import read_headers
from saga_activities.kafka.transactional_producer import TransactionalProducer
from sagas.settings import KafkaSettings

log = logging.getLogger("saga.transactions")

_POLL_INTERVAL = 1.0

HeaderPredicate = Callable[[Mapping[str, str]], bool]
"""Is a record with these headers one of them?"""


def open_transactions(settings: KafkaSettings, topic: str) -> dict[int, PartitionOffsets]:
    """The partitions with an open transaction, hanging or in progress. Raises KafkaOperationError."""
    return {one: offsets for one, offsets in KafkaAdmin(settings).offsets(topic).items() if offsets.undecided_records}


def abort_hanging_events(
    settings: KafkaSettings, producer: TransactionalProducer, topic: str, event_ids: Iterable[str]
) -> None:
    """:func:`abort_hanging` at the events of these ids; to be called when it is known that no try at them happened."""
    wanted = cache(lambda: frozenset(event_ids))  # most times nobody asks
    abort_hanging(settings, producer, topic, lambda headers: headers.get("ce_id") in wanted())


def abort_hanging(
    settings: KafkaSettings,
    producer: TransactionalProducer,
    topic: str,
    is_aborted: HeaderPredicate,
    is_committed: HeaderPredicate = lambda _: False,
) -> None:
    """Before ``producer`` writes to a topic: an earlier transaction of its own may be open there for ever, and the
    commit of the new one would make both visible. Who may not read the topic cannot look.

    ``tried`` says of a record's headers that it is of a transaction that did not happen; ``kept``, of one that did and
    may wait for its end: where such a record lies, nothing is ended. Raises KafkaOperationError, KafkaTransactionError.
    """
    try:
        waiting = open_transactions(settings, topic)
        tries, done = (
            _open_partitions(settings, topic, (is_aborted, is_committed), waiting)
            if waiting
            else (set[int](), set[int]())
        )
    except KafkaOperationError as problem:
        if problem.error_info is None or not problem.error_info.name.endswith("AUTHORIZATION_FAILED"):
            raise
        log.warning("%s: no right to READ, to see what is left of an earlier transaction", topic)
        return
    if both := tries & done:
        log.warning("%s: partitions %s have tries beside what has happened, and nothing is ended there", topic, both)
    if partitions := tries - done:
        log.warning("%s: what is left of an earlier transaction is ended in partitions %s", topic, partitions)
        producer.abort_in((topic, one) for one in partitions)


def visible_events(
    settings: KafkaSettings, topic: str, event_ids: Collection[str], start_time: float, keep_waiting: Callable[[], bool]
) -> set[str]:
    """Those of the ids ``wanted`` that readers see, among the records since ``moment`` (seconds since 1970).

    What is not decided counts as not visible only when it has stayed so for longer than a transaction may last, or
    when ``go_on`` says that nobody waits any more. Raises KafkaOperationError.
    """

    def is_wanted(headers: Mapping[str, str]) -> bool:
        return headers.get("ce_id") in event_ids

    cluster = KafkaAdmin(settings)
    until = time.monotonic() + settings.transaction_timeout + _POLL_INTERVAL
    while True:
        offsets = cluster.offsets(topic)
        waiting = {one: found for one, found in offsets.items() if found.undecided_records}
        if (
            not _open_partitions(settings, topic, (is_wanted,), waiting)[0]
            or time.monotonic() > until
            or not keep_waiting()
        ):
            break
        time.sleep(_POLL_INTERVAL)
    first = range_reader.offsets_since(settings, topic, start_time, offsets)
    ranges = {one: (first[one], found.last_stable) for one, found in offsets.items()}
    return {
        id for message in range_reader.read_ranges(settings, topic, ranges) if (id := _event_id(message)) in event_ids
    }


def _open_partitions(
    settings: KafkaSettings,
    topic: str,
    predicates: Sequence[HeaderPredicate],
    undecided_partitions: dict[int, PartitionOffsets],
) -> tuple[set[int], ...]:
    """For each kind, where such records lie at or after the last stable offset: their transaction is not decided, or it
    is and waits for somebody else's."""
    ranges = {one: (found.last_stable, found.high_watermark) for one, found in undecided_partitions.items()}
    places = tuple(set[int]() for _ in predicates)
    for message in range_reader.read_ranges(settings, topic, ranges, uncommitted=True):
        headers = read_headers(message)
        for place, which in zip(places, predicates, strict=True):
            if which(headers):
                place.add(message.partition() or 0)
    return places


def _event_id(message: Any) -> str:
    return read_headers(message).get("ce_id", "")
