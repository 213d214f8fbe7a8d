"""The outbox: an event is a row written in the transaction of its effect, and published later by a relay.

The relay scans by ``status``, never by "id above the last one": a lower id can be committed later.
"""

from __future__ import annotations

import json
import time
from uuid import uuid4

from activities.guard.codec import to_plain
from activities.guard.sql_handle import Sql
from sagas.step import Event
from sagas.wire import Invocation

NEW = "NEW"
"""The status of an event nobody has published yet."""

_INSERT = """
INSERT INTO saga_outbox (event_id, topic, event_key, value, headers, saga_id, step, generation, status, created_at)
VALUES (:event_id, :topic, :event_key, :value, :headers, :saga_id, :step, :generation, :status, :created_at)
"""


async def insert_event(sql: Sql, event: Event, invocation: Invocation) -> str:
    """Write one event in the action's transaction; returns its id (an attempt that is taken back leaves none).

    Raises ``UnusableResult`` for a value that is not JSON.
    """
    event_id = str(uuid4())
    await sql.execute(
        _INSERT,
        {
            "event_id": event_id,
            "topic": event.topic,
            "event_key": None if event.key is None else str(event.key),
            "value": json.dumps(to_plain(event.value), ensure_ascii=False),
            "headers": json.dumps(to_plain(event.headers), ensure_ascii=False),
            "saga_id": invocation.saga_id,
            "step": invocation.step,
            "generation": invocation.generation,
            "status": NEW,
            "created_at": time.time(),
        },
    )
    return event_id
