"""The events of a saga, checked from outside: the outbox, the topic, and what the consumer recorded.

The rules are pure, so that they can be tested themselves; they add to those of :mod:`tests.faults.evidence.checker`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.faults.cell_environment import CellEnvironment
from tests.faults.evidence.evidence import Effect
from tests.faults.messaging import messaging

Operation = tuple[str, str]
"""A step and its op: do, undo."""


@dataclass(frozen=True)
class OutboxRow:
    event: str
    operation: Operation
    status: str


@dataclass(frozen=True)
class Record:
    """A record under read_committed."""

    topic: str
    partition: int
    offset: int
    key: str | None
    event: str
    operation: Operation


@dataclass(frozen=True)
class Messages:
    """``offsets``: last stable offset and high watermark by partition. ``noted`` is what a consumer did, in its order;
    None: the row has none. ``stale`` are operations whose message a consumer had to drop because it came too late."""

    outbox: tuple[OutboxRow, ...]
    records: tuple[Record, ...]
    offsets: Mapping[str, tuple[int, int]]
    noted: tuple[Operation, ...] | None = None
    stale: frozenset[Operation] = frozenset()


Rule = Callable[[Messages, Sequence[Operation]], Iterator[str]]


def check_messages(messages: Messages, journal: Sequence[Effect]) -> list[str]:
    """Every violation, as ``I5: …``; ``journal`` is what the saga did, in the order of its commits."""
    did = [(effect.step, effect.op) for effect in journal]
    return [f"{name}: {sentence}" for name, rule in MESSAGE_RULES.items() for sentence in rule(messages, did)]


def exactly_once(messages: Messages, did: Sequence[Operation]) -> Iterator[str]:
    """I5: under read_committed there is each published row once, and nothing else; and that is what the saga did."""
    seen = Counter(record.event for record in messages.records)
    marked = {row.event for row in messages.outbox if row.status == "PUBLISHED"}
    for event, times in seen.items():
        if times > 1:
            yield f"event {event} is there {times} times"
        if event not in marked:
            yield f"event {event} is there, and its row is not marked"
    for event in marked - seen.keys():
        yield f"event {event} is marked, and is not there"
    reported, done = Counter(record.operation for record in messages.records), Counter(did)
    if reported != done:
        yield f"told were {dict(reported - done)} too much and {dict(done - reported)} too little"


def in_order(messages: Messages, did: Sequence[Operation]) -> Iterator[str]:
    """I6: a key's events are in the order of their transactions; a consumer did all of them, once, in that order."""
    lines: dict[tuple[str, str | None], list[Record]] = {}
    for record in messages.records:
        lines.setdefault((record.topic, record.key), []).append(record)
    for (topic, key), records in lines.items():
        if len({record.partition for record in records}) > 1:
            yield f"the events of {key} are in several partitions of {topic}"
        ordered = [record.operation for record in sorted(records, key=lambda record: record.offset)]
        wanted = [operation for operation in did if operation in ordered]
        if list(dict.fromkeys(ordered)) != wanted:
            yield f"the events of {key} came as {ordered}, not {wanted}"
    if messages.noted is not None:
        wanted = [operation for operation in did if operation not in messages.stale]
        if list(messages.noted) != wanted:
            yield f"the consumer did {list(messages.noted)}, not {wanted}"


def settled(messages: Messages, _: Sequence[Operation]) -> Iterator[str]:
    """I12: no row waits, and no transaction is open on any partition."""
    for row in messages.outbox:
        if row.status != "PUBLISHED":
            yield f"the event of {row.operation} is {row.status}"
    for place, (stable, high) in messages.offsets.items():
        if stable != high:
            yield f"{place}: the last stable offset is {stable}, the high watermark {high}"


MESSAGE_RULES: Mapping[str, Rule] = {"I5": exactly_once, "I6": in_order, "I12": settled}

_OUTBOX = """
select event_id, step, value::json ->> 'op', status from saga_outbox
where topic in (select topic from channels) or status <> 'PUBLISHED' order by id
"""


async def gather_messages(env: CellEnvironment) -> Messages:
    """Wait until the relay has no more to do, and read everything once."""
    environment = messaging(env)
    await environment.published(env)
    topics = [row[0] for row in await env.admin("select distinct topic from channels")]
    records = await asyncio.to_thread(environment.broker.read_committed, *topics)
    offsets: dict[str, tuple[int, int]] = {}
    for topic in (*topics, environment.progress_topic(env)):
        for partition, pair in (await asyncio.to_thread(environment.broker.offsets, topic)).items():
            offsets[f"{topic}/{partition}"] = pair
    return Messages(
        outbox=tuple(OutboxRow(row[0], (row[1], row[2]), row[3]) for row in await env.admin(_OUTBOX)),
        records=tuple(
            Record(
                record.topic,
                record.partition,
                record.offset,
                record.key,
                record.headers["ce_id"],
                _operation(record.json()),
            )
            for record in records
        ),
        offsets=offsets,
        noted=await _noted(env) if environment.consumes else None,
        stale=frozenset(environment.stale.get(env.database, ())),
    )


async def _noted(env: CellEnvironment) -> tuple[Operation, ...]:
    return tuple((row[0], row[1]) for row in await env.admin("select step, op from noted order by id"))


def _operation(value: Mapping[str, str]) -> Operation:
    return value["step"], value["op"]
