"""The outbox: an event is a row written in the transaction of its effect and published later by the relay.

The relay never reads ids above the last one: a lower id can be committed later. The built-in steps that emit events are
also here.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.attempt_context import ActionBody, AttemptContext
from saga_activities.concurrency import Backoff
from saga_activities.guard.database_errors import classify_database_error
from saga_activities.guard.outbox_postgresql import outbox_rows
from saga_activities.guard.sql_session import SqlSession
from saga_activities.guard.stored_values import StoredValues
from saga_activities.guard.tables import now_sql, outbox_table
from saga_activities.json_results import UnusableResult, to_json_value
from saga_activities.kafka.record_codec import STEP_KEY_HEADER, TRACEPARENT_HEADER, record_value
from saga_activities.value_cipher import ENCRYPTED_TEXT
from saga_activities.value_places import event_place
from sagas.actions.events import Event
from sagas.builtins.messaging import first_reserved_header, reserved_header_message, topic_problem
from sagas.errors import UsageError
from sagas.portions import in_portions
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import Invocation
from sagas.text.exact_json import encode_json
from sagas.text.message_texts import MessageTexts
from sagas.text.shortening import counted
from sagas.text.uuid7 import uuid7

NEW = "NEW"
"""Committed; the relay will publish it."""
HELD = "HELD"
"""Waits for the saga's commit point: then NEW, or DROPPED if the saga is rolled back.

The guard's transaction of the step's confirm or undo changes it, see ``held_decision_of`` in guard/rules.py.
"""
PUBLISHED = "PUBLISHED"
SUSPENDED = "SUSPENDED"
"""Committed, and passed over by the relay on PostgreSQL because its topic could not be used; published later."""
DROPPED = "DROPPED"
REFUSED = "REFUSED"
"""The broker will never accept it (``note`` has the reason): an operator decides."""

MAX_MESSAGE_BYTES = 1_000_000
"""Bytes of key, value and headers. By default, Kafka's brokers accept records of about 1 MiB."""

RELAY_HEADER_BYTES = 2_048
"""Bytes reserved in every message for the headers that the relay adds: id, type, source, time, saga and step."""

_MAX_EVENT_ID = 36
_MAX_EVENT_TYPE = 255

_INSERT_EVENT = """
INSERT INTO {outbox} (event_id, topic, event_key, value, headers, saga_id, step, generation, status, created_at,
                         event_type, shard)
VALUES (:event_id, :topic, :event_key, :value, :headers, :saga_id, :step, :generation, :status, {now},
        :event_type, :hash % (SELECT {shards} FROM saga_outbox_home WHERE id = 1))
"""


@dataclass(frozen=True, slots=True)
class PreparedEvents:
    """The rows of the events of one call. Writing them in the action's transaction is all that is left to do."""

    rows: tuple[Mapping[str, Any], ...]

    @staticmethod
    def of(
        events: Iterable[Event],
        invocation: Invocation,
        traceparent: str | None = None,
        max_bytes: int = MAX_MESSAGE_BYTES,
    ) -> PreparedEvents:
        """The rows of these events. ``traceparent`` of the attempt becomes a header, unless the event has its own.

        ``hold`` takes effect only in a `do` that runs before the commit point; otherwise the event is published at
        once. Raises ``UnusableResult`` for an event that no broker would accept: its value or a header is not JSON or
        not UTF-8, it is larger than ``max_bytes``, or its topic or id is invalid.
        """
        waits = invocation.op == "do" and invocation.guard is not None and invocation.guard.holds is True
        ours = {STEP_KEY_HEADER: invocation.key or None, TRACEPARENT_HEADER: traceparent}
        headers = {name: text for name, text in ours.items() if text is not None}
        address = {
            "saga_id": invocation.saga_id,
            "step": invocation.entry,
            "generation": invocation.generation,
        }
        texts = MessageTexts()
        return PreparedEvents(
            tuple(
                {
                    **event_row(
                        replace(event, hold=event.hold and waits, headers=headers | {**event.headers}),
                        max_bytes,
                        texts,
                    ),
                    **address,
                }
                for event in events
            )
        )

    @property
    def names(self) -> list[dict[str, str]]:
        """The topic and id of each event, the result of an emitting step."""
        return [{"topic": row["topic"], "id": row["event_id"]} for row in self.rows]


async def insert_prepared(sql: SqlSession, prepared: Iterable[PreparedEvents]) -> None:
    """Write the events in the session's transaction. A rollback of the attempt removes them."""
    rows = [stored_event(row, sql.stored_values) for event in prepared for row in event.rows]
    if rows:
        shards = "shards::bigint" if sql.dialect == "postgresql" else "shards"
        statement = _INSERT_EVENT.format(outbox=outbox_rows(sql.dialect).name, shards=shards, now=now_sql(sql.dialect))
        await sql.use_own_search_path()
        await sql.execute(statement, rows)


_ENCRYPTED = ("value", "event_key", "headers")
"""The columns that are encrypted, all of an event or none: its value is JSON, so it tells which."""


def stored_event(row: Mapping[str, Any], values: StoredValues) -> Mapping[str, Any]:
    """A row of the outbox as it is stored. The reverse is :func:`decrypted_event`."""
    if not values.encrypts_outbox:
        return row
    return {**row, **{name: values.encrypt_json(event_place(row, name), row[name]) for name in _ENCRYPTED}}


def decrypted_event(row: Mapping[str, Any], values: StoredValues) -> dict[str, Any]:
    """The value, key and headers of a row of the outbox in clear. ``row`` also has its id, topic and saga.

    Raises :class:`saga_activities.guard.unreadable_rows.UnreadableRow`.
    """
    if not (row["value"] or "").startswith(ENCRYPTED_TEXT):
        return {name: row[name] for name in _ENCRYPTED}
    return {name: values.decrypt_json(event_place(row, name), row[name]) for name in _ENCRYPTED}


def event_row(event: Event, max_bytes: int = MAX_MESSAGE_BYTES, texts: MessageTexts | None = None) -> dict[str, Any]:
    """The columns of a row that depend only on the event. ``texts``: the events of one call share it.

    Raises as :meth:`PreparedEvents.of` does.
    """
    texts = texts or MessageTexts()
    # Beginning with the time, new events are adjacent in the unique index of a large outbox: PostgreSQL needs a third
    # less time to write and to mark one than with random ids.
    event_id = event.id or uuid7()
    key = key_text(event.key, texts)
    row = {
        "event_id": event_id,
        "topic": event.topic,
        "event_key": key,
        "value": _json_text(event, event.value),
        "headers": _json_text(event, header_strings(event, texts)),
        "status": HELD if event.hold else NEW,
        "event_type": event.type,
        "hash": shard_hash(event.topic, key, event_id),
    }
    check_topic(event.topic)
    if len(event_id) > _MAX_EVENT_ID:
        raise UnusableResult(
            f"the id of an event has at most {_MAX_EVENT_ID} characters; {event_id!r} has {len(event_id)}"
        )
    if event.type is not None and len(event.type) > _MAX_EVENT_TYPE:
        raise UnusableResult(f"the type of an event has at most {_MAX_EVENT_TYPE} characters, not {len(event.type)}")
    size = RELAY_HEADER_BYTES + sum(_utf8_size(event, text) for text in (key, row["value"], row["headers"]))
    if size > max_bytes:
        raise UnusableResult(event_too_large(event.topic, size, max_bytes))
    return row


def event_too_large(topic: str, size: int, max_bytes: int) -> str:
    """The sentence about an event that is larger than ``max_message_bytes`` under ``[kafka]``."""
    return f"the event for {topic} has {size} bytes with its key and headers; at most {max_bytes} are allowed"


def check_topic(topic: object) -> None:
    """Raise :class:`UnusableResult` for what cannot be the topic of an event."""
    if problem := topic_problem(topic):
        raise UnusableResult(problem)


def shard_hash(topic: str, key: str | None, event_id: str) -> int:
    """The hash of an event; modulo the number of shards it gives the event's shard.

    It must be the same for all events of one topic and key in every version of the engine: their order depends on it.
    Without a key there is no order to keep, and the id distributes the events.
    """
    return zlib.crc32(f"{topic}\0{event_id if key is None else key}".encode("utf-8", "surrogatepass")) & 0x7FFF_FFFF


def _json_text(event: Event, value: Any) -> str:
    try:
        return record_value(value)
    except UnusableResult as error:
        raise UnusableResult(f"the event for {event.topic} cannot be written as JSON: {error}") from error


def header_strings(event: Event, texts: MessageTexts | None = None) -> dict[str, str]:
    """The headers as strings; numbers and booleans are written as JSON. Raises :class:`UnusableResult`."""
    texts = texts or MessageTexts()
    try:
        given = to_json_value(event.headers)
    except UnusableResult as error:
        raise UnusableResult(f"the headers of the event for {event.topic} cannot be written: {error}") from error
    headers: dict[str, str] = {}
    if not isinstance(given, dict):
        raise UnusableResult(f"the headers of an event must be a mapping; those for {event.topic} are {given!r}")
    for name, value in given.items():
        if value is None or isinstance(value, dict | list):
            raise UnusableResult(
                f"a header must be a string; {name!r} of the event for {event.topic} is {value!r}: leave it out, or"
                " write text"
            )
        headers[name] = _text(value, "the headers", texts)
    return headers


def _utf8_size(event: Event, text: str | None) -> int:
    try:
        return 0 if text is None else len(text.encode())
    except UnicodeEncodeError as error:
        raise UnusableResult(f"the event for {event.topic} contains text that is not UTF-8: {error.reason}") from error


# Events of the built-in steps `outbox.emit`, `kafka.publish` and `sql` (`emit`), in the guard's transaction.
_EVENT_FIELDS = ("topic", "key", "value", "headers", "hold")
_POLL_INTERVALS = Backoff(0.02, 0.5, factor=1.5)
"""Seconds between two polls of the outbox while a step waits for the relay."""

_READ_AT_ONCE = 500


def read_events(items: Any, invocation: Invocation) -> list[Event]:
    """The events that the arguments of a built-in action describe.

    Raises :class:`UsageError` for an item that is not an event, and for a `hold` that the definition does not declare:
    nothing would release the event.
    """
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise UsageError(f"the events of {invocation.action} must be a list, not {encode_json(items).decode()[:80]}")
    return [_read_event(item, invocation) for item in items]


def _read_event(item: Any, invocation: Invocation) -> Event:
    if not isinstance(item, Mapping) or not isinstance(item.get("topic"), str) or "value" not in item:
        raise UsageError(f"an event of {invocation.action} needs `topic`, a string, and `value`")
    unknown = [name for name in item if name not in _EVENT_FIELDS]
    if unknown:
        raise UsageError(f"an event has no field {unknown[0]!r}; it has {', '.join(_EVENT_FIELDS)}")
    hold, headers = item.get("hold", False), item.get("headers") or {}
    if not isinstance(hold, bool) or not isinstance(headers, Mapping):
        raise UsageError(f"in an event for {item['topic']} `hold` is true or false, and `headers` a mapping")
    if (header := first_reserved_header(headers)) is not None:
        raise UsageError(reserved_header_message(header))
    if hold and (why := hold_refusal(invocation)) is not None:
        raise UsageError(why)
    return Event(item["topic"], item.get("key"), item["value"], headers, hold)


def key_text(key: Any, texts: MessageTexts | None = None) -> str | None:
    """The key of a message: a string unchanged, a number with its digits, other JSON as such; else its ``str``.

    Raises :class:`UnusableResult`.
    """
    if key is None:
        return None
    is_json = isinstance(key, str | int | float | Decimal | dict | list)
    return _text(key, "the key", texts or MessageTexts()) if is_json else str(key)


def _text(value: Any, place: str, texts: MessageTexts) -> str:
    try:
        return texts.text(value)
    except ValueError as error:
        raise UnusableResult(f"{place} of an event cannot be written: {error}") from error


def hold_refusal(invocation: Invocation) -> str | None:
    """Why an event of this call must not be held; None if it may (or if there is nothing to wait for)."""
    if invocation.op != "do" or (invocation.guard is not None and invocation.guard.holds is not None):
        return None
    return (
        f"the definition of this saga does not declare that {invocation.action} holds events, so nothing would "
        f"release this one: write `hold: true`, or declare the Python action with holds=True before the saga starts"
    )


async def insert_events(
    sql: SqlSession,
    events: Iterable[Event],
    invocation: Invocation,
    max_bytes: int = MAX_MESSAGE_BYTES,
    traceparent: str | None = None,
) -> list[dict[str, str]]:
    """Write the events of one call; returns the topic and id of each. Raises as :meth:`PreparedEvents.of` does."""
    prepared = PreparedEvents.of(events, invocation, traceparent, max_bytes)
    await insert_prepared(sql, [prepared])
    return prepared.names


async def wait_until_published(
    engine: AsyncEngine, result: Any, attempt: AttemptContext, deadline: float
) -> Outcome | None:
    """Wait until the relay has published the events in ``result`` of an emitting step.

    Returns None when all are published, or an unknown outcome when the attempt's time is over; the next attempt gets
    the stored result and continues to wait. If an operator has dropped one of them, the outcome parks the step. A
    missing row was published: the relay keeps that of a dropped event for longer than an attempt takes.
    """
    # An operator may have recorded another result.
    stored = result.get("events") if isinstance(result, Mapping) else None
    wanted = {event["id"]: event["topic"] for event in stored or ()}
    open_ids, why = list(wanted), ""
    for interval in _POLL_INTERVALS:
        try:
            open_ids, dropped, why = await _unpublished(engine, open_ids)
            if dropped:
                return _never_published([wanted[event_id] for event_id in dropped], len(wanted), why)
        except Exception as error:
            classified = classify_database_error(error)
            if classified is None or not classified.infrastructure:
                raise
            why = classified.message
        if not open_ids:
            return None
        topics = ", ".join(sorted({wanted[event_id] for event_id in open_ids}))
        seconds = deadline - time.time()
        if seconds <= interval:
            message = (
                f"stored, but {len(open_ids)} of {counted(len(wanted), 'event')} "
                f"{'is' if len(open_ids) == 1 else 'are'} not published yet ({topics})"
            )
            return Outcome("unknown", failure=Failure("NotPublished", f"{message}{why and ': '}{why}"))
        attempt.heartbeat({"waiting_for": "the relay", "events": len(open_ids), "topics": topics})
        await asyncio.sleep(interval)


def _never_published(topics: list[str], count: int, why: str) -> Outcome:
    message = (
        f"stored, but {len(topics)} of {counted(count, 'event')} will never be published "
        f"({', '.join(sorted(set(topics)))}): {why}"
    )
    return Outcome("unknown", failure=Failure("NotPublished", message), retryable=False, park_reason=message)


async def _unpublished(engine: AsyncEngine, ids: list[str]) -> tuple[list[str], list[str], str]:
    """The events of these that are not published, those of them that were dropped, and why, as far as it is noted."""
    waiting: list[str] = []
    dropped: list[str] = []
    notes: dict[str, str] = {}
    async with engine.connect() as connection:
        events = outbox_table.c
        for portion in in_portions(ids, _READ_AT_ONCE):
            some = events.event_id.in_(portion)
            rows = await connection.execute(select(events.event_id, events.status, events.note).where(some))
            for row in rows:
                if row.status != PUBLISHED:
                    waiting.append(row.event_id)
                    notes[row.event_id] = row.note or ""
                if row.status == DROPPED:
                    dropped.append(row.event_id)
    why = [note for event_id in dropped or waiting if (note := notes[event_id])]
    return waiting, dropped, why[-1] if why else ""


def emitted_events(
    arguments: Mapping[str, Any],
    invocation: Invocation,
    attempt: AttemptContext,
    max_bytes: int = MAX_MESSAGE_BYTES,
) -> PreparedEvents:
    """Return what `outbox.emit` and `kafka.publish` write. Raises as :func:`read_events` and :meth:`PreparedEvents.of`
    do.
    """
    return PreparedEvents.of(
        read_events(arguments.get("events"), invocation), invocation, attempt.traceparent, max_bytes
    )


def emit_body(
    arguments: Mapping[str, Any],
    invocation: Invocation,
    attempt: AttemptContext,
    max_bytes: int = MAX_MESSAGE_BYTES,
) -> ActionBody:
    """`outbox.emit` and `kafka.publish`; the result names the events. Raises as :func:`read_events` does."""
    events = read_events(arguments.get("events"), invocation)

    async def run(sql: SqlSession | None) -> Any:
        assert sql is not None
        return {"events": await insert_events(sql, events, invocation, max_bytes, attempt.traceparent)}

    return run


async def empty_body(_: SqlSession | None) -> None:
    """`outbox.release` and `outbox.drop`: the guard's transaction itself changes the status."""
