"""The outbox: an event is a row written in the transaction of its effect, and published later by the relay.

The relay scans by ``status``, never by "id above the last one": a lower id can be committed later.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from dataclasses import replace
from typing import Any
from uuid import uuid4

from saga_activities.guard.codec import UnusableResult, to_plain
from saga_activities.guard.sql_handle import Sql
from saga_activities.kafka.wire import STEP_KEY, TRACEPARENT
from sagas.builtins_messaging import TOPIC_NAME
from sagas.step import Event
from sagas.wire import Invocation

NEW = "NEW"
"""Committed; the relay will publish it."""
HELD = "HELD"
"""Waits for the saga's commit point: NEW then, or DROPPED when the saga is taken back."""
PUBLISHED = "PUBLISHED"
DROPPED = "DROPPED"
REFUSED = "REFUSED"
"""The broker will never take it (``note`` says why): a person decides."""

MAX_MESSAGE_BYTES = 1_000_000
"""Of a message: key, value and headers. Kafka's brokers take records of about a mebibyte unless told otherwise."""

HEADERS_ADDED = 2_048
"""Bytes left in every message for the headers that the relay adds: id, type, source, time, saga and step."""

_MAX_ID = 36
_MAX_TYPE = 255

_INSERT = """
INSERT INTO saga_outbox (event_id, topic, event_key, value, headers, saga_id, step, generation, status, created_at,
                         event_type, shard)
VALUES (:event_id, :topic, :event_key, :value, :headers, :saga_id, :step, :generation, :status, :created_at,
        :event_type, :hash % (SELECT shards FROM saga_outbox_home WHERE id = 1))
"""


async def insert_event(
    sql: Sql,
    event: Event,
    invocation: Invocation,
    *,
    max_bytes: int = MAX_MESSAGE_BYTES,
    traceparent: str | None = None,
) -> str:
    """Write one event in the action's transaction; returns its id (an attempt that is taken back leaves none).

    ``traceparent`` of the attempt goes along as a header, unless the event has one of its own.

    Raises ``UnusableResult`` for an event that no broker would take: its value or a header is not JSON or not UTF-8,
    it is larger than ``max_bytes``, its topic or id is none. Found here, nothing of the step happens.
    """
    ours = {STEP_KEY: invocation.key or None, TRACEPARENT: traceparent}
    event = replace(event, headers={name: one for name, one in ours.items() if one is not None} | {**event.headers})
    row = event_row(event, max_bytes)
    await sql.execute(
        _INSERT,
        {
            **row,
            "saga_id": invocation.saga_id,
            "step": invocation.step,
            "generation": invocation.generation,
            "created_at": time.time(),
        },
    )
    return row["event_id"]


def event_row(event: Event, max_bytes: int = MAX_MESSAGE_BYTES) -> dict[str, Any]:
    """What the event itself gives of its row. Raises as :func:`insert_event` does."""
    event_id = event.id or str(uuid4())
    key = None if event.key is None else str(event.key)
    row = {
        "event_id": event_id,
        "topic": event.topic,
        "event_key": key,
        "value": json.dumps(_plain(event, event.value), ensure_ascii=False),
        "headers": json.dumps(_headers(event), ensure_ascii=False),
        "status": HELD if event.hold else NEW,
        "event_type": event.type,
        "hash": shard_hash(event.topic, key, event_id),
    }
    if not re.fullmatch(TOPIC_NAME, event.topic):
        shown = f"{event.topic[:60]}…" if len(event.topic) > 60 else event.topic
        raise UnusableResult(
            f"{shown!r} is not the name of a topic: 1 to 249 letters, digits, `.`, `-` and `_`, and none of Kafka's own"
        )
    if len(event_id) > _MAX_ID:
        raise UnusableResult(f"the id of an event has at most {_MAX_ID} characters; {event_id!r} has {len(event_id)}")
    if event.type is not None and len(event.type) > _MAX_TYPE:
        raise UnusableResult(f"the type of an event has at most {_MAX_TYPE} characters, not {len(event.type)}")
    size = HEADERS_ADDED + sum(_size(event, text) for text in (key, row["value"], row["headers"]))
    if size > max_bytes:
        raise UnusableResult(
            f"the event for {event.topic} has {size} bytes with its key and headers; at most {max_bytes} are allowed"
        )
    return row


def shard_hash(topic: str, key: str | None, event_id: str) -> int:
    """A number that says, modulo the outbox's shards, who publishes the event.

    The same for all events of one topic and key, in every version of the engine: their order rests on it. Without a
    key there is no order to keep, and the id spreads the events.
    """
    return zlib.crc32(f"{topic}\0{event_id if key is None else key}".encode("utf-8", "surrogatepass")) & 0x7FFF_FFFF


def _plain(event: Event, value: Any) -> Any:
    try:
        return to_plain(value)
    except UnusableResult as error:
        raise UnusableResult(f"the event for {event.topic} cannot be written as JSON: {error}") from error


def _headers(event: Event) -> dict[str, str]:
    """Headers of Kafka are texts; numbers and booleans are written as JSON writes them."""
    headers: dict[str, str] = {}
    for name, value in _plain(event, event.headers).items():
        if value is None or isinstance(value, dict | list):
            raise UnusableResult(f"a header is a text; {name!r} of the event for {event.topic} is {value!r}")
        headers[name] = value if isinstance(value, str) else json.dumps(value)
    return headers


def _size(event: Event, text: str | None) -> int:
    try:
        return 0 if text is None else len(text.encode())
    except UnicodeEncodeError as error:
        raise UnusableResult(f"the event for {event.topic} holds text that is not UTF-8: {error.reason}") from error
