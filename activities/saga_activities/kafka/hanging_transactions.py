"""Finds hanging transactions, so that the producer that began them can abort them. All calls block.

A broker that restarts or moves a partition may lose the transaction marker for a partition that has no leader at that
time (KAFKA-20734, brokers 4.1 to 4.3): for the coordinator the transaction is complete, in the partition it stays open
forever and blocks read_committed consumers. The next marker of the same producer there ends both transactions: a commit
would make visible what was aborted and has been sent again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from saga_activities.kafka import range_reader
from saga_activities.kafka.admin import KafkaAdmin, KafkaOperationError, PartitionOffsets
from saga_activities.kafka.record_codec import known_headers
from saga_activities.kafka.topic_end import TopicEnd, topic_end
from saga_activities.kafka.transactional_producer import TransactionalProducer
from sagas.settings import KafkaSettings

log = logging.getLogger("saga.transactions")

_POLL_INTERVAL = 1.0

HeaderPredicate = Callable[[Mapping[str, str]], bool]
"""Selects records by their headers."""


def open_transactions(settings: KafkaSettings, topic: str) -> dict[int, PartitionOffsets]:
    """The partitions with an open transaction, hanging or in progress. Raises KafkaOperationError."""
    return {
        partition: offsets
        for partition, offsets in KafkaAdmin(settings).offsets(topic).items()
        if offsets.undecided_records
    }


def abort_hanging_events(
    settings: KafkaSettings, producer: TransactionalProducer, topic: str, event_ids: Iterable[str]
) -> None:
    """:func:`abort_hanging` for the events of these ids, which are known to be in no committed transaction."""
    known_ids = cache(lambda: frozenset(event_ids))  # rarely needed
    abort_hanging(settings, producer, topic, lambda headers: headers.get("ce_id") in known_ids())


def abort_hanging(
    settings: KafkaSettings,
    producer: TransactionalProducer,
    topic: str,
    is_aborted: HeaderPredicate,
    is_committed: HeaderPredicate = lambda _: False,
) -> None:
    """Abort hanging transactions of ``producer`` in a topic; call it before ``producer`` writes there.

    Otherwise the commit of a new transaction would also make the hanging one visible. ``is_aborted`` selects records of
    a transaction that did not happen; ``is_committed`` those of one that did, but may still lack its marker: in
    partitions with such records nothing is aborted. Without the right to READ the topic only a warning is logged.
    Raises KafkaOperationError, KafkaTransactionError.
    """
    begun: Mapping[int, int] = {}
    done: Mapping[int, int] = {}
    try:
        if waiting := open_transactions(settings, topic):
            begun, done = _hidden_partitions(settings, topic, (is_aborted, is_committed), waiting)
    except KafkaOperationError as problem:
        if problem.error_info is None or not problem.error_info.name.endswith("AUTHORIZATION_FAILED"):
            raise
        context = {"topic": topic, "operation": "READ"}
        log.warning("not authorized, hanging transactions are not looked up", extra={"context": context})
        return
    if both := begun.keys() & done.keys():
        context = {"topic": topic, "partitions": sorted(both)}
        log.warning("partitions hold committed records, their transactions are not aborted", extra={"context": context})
    if partitions := begun.keys() - done.keys():
        # Where the first open transaction is another producer's, one of ours has ended, or hangs behind it.
        if first := sorted(partition for partition in partitions if begun[partition] == waiting[partition].last_stable):
            context = {"topic": topic, "partitions": first}
            log.warning("hanging transaction is aborted", extra={"context": context})
        producer.abort_in((topic, partition) for partition in partitions)


def visible_events(
    settings: KafkaSettings, topic: str, event_ids: Collection[str], start_time: float, keep_waiting: Callable[[], bool]
) -> set[str]:
    """Return those of ``event_ids`` that readers see, among the records since ``start_time`` (seconds since the epoch).

    An undecided record counts as not visible only when its transaction is the first open one of its partition, and open
    for longer than a transaction may last, or when ``keep_waiting`` returns False. Raises KafkaOperationError;
    OpenTransaction if such a record may be committed, behind a transaction of another producer.
    """

    def is_wanted(headers: Mapping[str, str]) -> bool:
        return headers.get("ce_id") in event_ids

    until = time.monotonic() + settings.transaction_timeout + _POLL_INTERVAL
    while True:
        end = topic_end(settings, topic)
        offsets = end.offsets
        [hidden] = _hidden_partitions(settings, topic, (is_wanted,), offsets)
        if not hidden or not keep_waiting():
            break
        if time.monotonic() > until:
            if any(offset > offsets[partition].last_stable for partition, offset in hidden.items()):
                raise end.open_transaction(f"events in {topic} may be published,")
            break
        time.sleep(_POLL_INTERVAL)
    first = range_reader.offsets_since(settings, topic, start_time, offsets)
    messages = range_reader.read_ranges(settings, topic, end.readable(first))
    return {id for message in messages if (id := _event_id(message)) in event_ids}


def _hidden_partitions(
    settings: KafkaSettings,
    topic: str,
    predicates: Sequence[HeaderPredicate],
    offsets: Mapping[int, PartitionOffsets],
) -> tuple[dict[int, int], ...]:
    """For each predicate, the partitions with such records at or after the last stable offset, and the first of them.

    If that is the last stable offset, its transaction is open; else it may be open, aborted or complete, behind an open
    one of another producer.
    """
    selected = tuple(dict[int, int]() for _ in predicates)
    hidden = TopicEnd(topic, settings.servers, offsets).hidden()
    for message in range_reader.read_ranges(settings, topic, hidden, uncommitted=True):
        headers = known_headers(message)
        for partitions, which in zip(selected, predicates, strict=True):
            if which(headers):
                partitions.setdefault(message.partition() or 0, message.offset() or 0)
    return selected


def _event_id(message: Any) -> str:
    return known_headers(message).get("ce_id", "")
