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

from saga_activities.kafka import reading
from saga_activities.kafka.topics import Cluster, KafkaProblem, Offsets
from saga_activities.kafka.transactions import TransactionalProducer
from saga_activities.kafka.wire import read_headers
from sagas.settings import KafkaSettings

log = logging.getLogger("saga.transactions")

_LOOK = 1.0

Which = Callable[[Mapping[str, str]], bool]
"""Is a record with these headers one of them?"""


def undecided(settings: KafkaSettings, topic: str) -> dict[int, Offsets]:
    """The partitions with a transaction that is open: lost, or somebody's who is at work. Raises KafkaProblem."""
    return {one: offsets for one, offsets in Cluster(settings).offsets(topic).items() if offsets.undecided}


def end_tries_at(settings: KafkaSettings, producer: TransactionalProducer, topic: str, ids: Iterable[str]) -> None:
    """:func:`end_tries` at the events of these ids; to be called when it is known that no try at them happened."""
    wanted = cache(lambda: frozenset(ids))  # most times nobody asks
    end_tries(settings, producer, topic, lambda headers: headers.get("ce_id") in wanted())


def end_tries(
    settings: KafkaSettings,
    producer: TransactionalProducer,
    topic: str,
    tried: Which,
    kept: Which = lambda _: False,
) -> None:
    """Before ``producer`` writes to a topic: an earlier transaction of its own may be open there for ever, and the
    commit of the new one would make both visible. Who may not read the topic cannot look.

    ``tried`` says of a record's headers that it is of a transaction that did not happen; ``kept``, of one that did and
    may wait for its end: where such a record lies, nothing is ended. Raises KafkaProblem, TransactionTrouble.
    """
    try:
        waiting = undecided(settings, topic)
        tries, done = _open_in(settings, topic, (tried, kept), waiting) if waiting else (set[int](), set[int]())
    except KafkaProblem as problem:
        if problem.failure is None or not problem.failure.name.endswith("AUTHORIZATION_FAILED"):
            raise
        log.warning("%s: no right to READ, to see what is left of an earlier transaction", topic)
        return
    if both := tries & done:
        log.warning("%s: partitions %s have tries beside what has happened, and nothing is ended there", topic, both)
    if partitions := tries - done:
        log.warning("%s: what is left of an earlier transaction is ended in partitions %s", topic, partitions)
        producer.end_in((topic, one) for one in partitions)


def visible(
    settings: KafkaSettings, topic: str, wanted: Collection[str], moment: float, go_on: Callable[[], bool]
) -> set[str]:
    """Those of the ids ``wanted`` that readers see, among the records since ``moment`` (seconds since 1970).

    What is not decided counts as not visible only when it has stayed so for longer than a transaction may last, or
    when ``go_on`` says that nobody waits any more. Raises KafkaProblem.
    """

    def is_wanted(headers: Mapping[str, str]) -> bool:
        return headers.get("ce_id") in wanted

    cluster = Cluster(settings)
    until = time.monotonic() + settings.transaction_timeout + _LOOK
    while True:
        offsets = cluster.offsets(topic)
        waiting = {one: found for one, found in offsets.items() if found.undecided}
        if not _open_in(settings, topic, (is_wanted,), waiting)[0] or time.monotonic() > until or not go_on():
            break
        time.sleep(_LOOK)
    first = reading.since(settings, topic, moment, offsets)
    ranges = {one: (first[one], found.stable) for one, found in offsets.items()}
    return {id for message in reading.read_ranges(settings, topic, ranges) if (id := _id(message)) in wanted}


def _open_in(
    settings: KafkaSettings, topic: str, kinds: Sequence[Which], waiting: dict[int, Offsets]
) -> tuple[set[int], ...]:
    """For each kind, where such records lie at or after the last stable offset: their transaction is not decided, or it
    is and waits for somebody else's."""
    ranges = {one: (found.stable, found.high) for one, found in waiting.items()}
    places = tuple(set[int]() for _ in kinds)
    for message in reading.read_ranges(settings, topic, ranges, uncommitted=True):
        headers = read_headers(message)
        for place, which in zip(places, kinds, strict=True):
            if which(headers):
                place.add(message.partition() or 0)
    return places


def _id(message: Any) -> str:
    return read_headers(message).get("ce_id", "")
