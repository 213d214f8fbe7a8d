"""Events of built-in steps: `outbox.emit`, `kafka.publish` and the `emit` of `sql`, in the guard's transaction."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import bindparam, text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.attempt import Attempt, Body
from saga_activities.guard.errors import classify
from saga_activities.guard.sql_handle import Sql
from saga_activities.outbox import MAX_MESSAGE_BYTES, PUBLISHED, insert_event
from saga_activities.sql import run_sql
from sagas.builtins_messaging import refused_header, why_refused
from sagas.errors import UsageError
from sagas.outcomes import Failure, Outcome
from sagas.step import Event
from sagas.wire import Invocation

_FIELDS = ("topic", "key", "value", "headers", "hold")
_STATUS = text("SELECT event_id, topic, status, note FROM saga_outbox WHERE event_id IN :ids").bindparams(
    bindparam("ids", expanding=True)
)
_FIRST_LOOK = 0.02
_LONGEST_WAIT = 0.5
"""Seconds between two looks at the outbox while a step waits for the relay."""

_AT_ONCE = 500


def read_events(written: Any, invocation: Invocation) -> list[Event]:
    """The events that the arguments of a built-in action describe.

    Raises :class:`UsageError` for what is no event, and for `hold` that the definition does not show: its step would
    have nothing that releases the event.
    """
    if not isinstance(written, Sequence) or isinstance(written, str):
        raise UsageError(f"the events of {invocation.action} have to be a list, not {json.dumps(written)[:80]}")
    return [_read(one, invocation) for one in written]


def _read(one: Any, invocation: Invocation) -> Event:
    if not isinstance(one, Mapping) or not isinstance(one.get("topic"), str) or "value" not in one:
        raise UsageError(f"an event of {invocation.action} needs a `topic`, which is a text, and a `value`")
    unknown = [name for name in one if name not in _FIELDS]
    if unknown:
        raise UsageError(f"an event has no field {unknown[0]!r}; it has {', '.join(_FIELDS)}")
    hold, headers = one.get("hold", False), one.get("headers") or {}
    if not isinstance(hold, bool) or not isinstance(headers, Mapping):
        raise UsageError(f"in an event for {one['topic']} `hold` is true or false, and `headers` a mapping")
    if (header := refused_header(headers)) is not None:
        raise UsageError(why_refused(header))
    if hold and (why := refuses_hold(invocation)) is not None:
        raise UsageError(why)
    return Event(one["topic"], key_text(one.get("key")), one["value"], headers, hold)


def key_text(key: Any) -> str | None:
    """The key of a message as it is written: a text as it is, anything else as JSON."""
    return key if key is None or isinstance(key, str) else json.dumps(key, ensure_ascii=False, sort_keys=True)


def refuses_hold(invocation: Invocation) -> str | None:
    """Why an event of this call must not be held; None when it may (or when there is nothing to wait for)."""
    if invocation.op != "do" or (invocation.guard is not None and invocation.guard.holds is not None):
        return None
    return (
        f"the definition this saga runs does not say that {invocation.action} holds events, so nothing would release "
        "this one: write `hold: true` out, or declare the Python action with holds=True before the saga starts"
    )


async def insert_events(
    sql: Sql,
    events: Iterable[Event],
    invocation: Invocation,
    max_bytes: int = MAX_MESSAGE_BYTES,
    traceparent: str | None = None,
) -> list[dict[str, str]]:
    """Write the rows of the events; those with ``hold`` wait only where the saga has a commit point before it."""
    waits = invocation.op == "do" and invocation.guard is not None and invocation.guard.holds is True
    rows = []
    for event in events:
        written = replace(event, hold=event.hold and waits)
        event_id = await insert_event(sql, written, invocation, max_bytes=max_bytes, traceparent=traceparent)
        rows.append({"topic": event.topic, "id": event_id})
    return rows


async def wait_until_published(engine: AsyncEngine, result: Any, attempt: Attempt, deadline: float) -> Outcome | None:
    """Wait until the relay has published what ``result`` of an emitting step names.

    None: all of it is. An outcome: the attempt's time is over; the next one gets the stored result and waits on. A row
    that is gone was published: the relay removes no other.
    """
    stored = result.get("events") if isinstance(result, Mapping) else None  # a person may have written another result
    wanted = {event["id"]: event["topic"] for event in stored or ()}
    pause, open_ids, why = _FIRST_LOOK, list(wanted), ""
    while True:
        try:
            open_ids, why = await _unpublished(engine, open_ids)
        except Exception as error:
            trouble = classify(error)
            if trouble is None or not trouble.infrastructure:
                raise
            why = trouble.message
        if not open_ids:
            return None
        topics = ", ".join(sorted({wanted[one] for one in open_ids}))
        left = deadline - time.time()
        if left <= pause:
            sentence = f"stored, but {len(open_ids)} of {len(wanted)} events are not published yet ({topics})"
            return Outcome("unknown", failure=Failure("NotPublished", f"{sentence}{why and ': '}{why}"))
        attempt.heartbeat({"waiting_for": "the relay", "events": len(open_ids), "topics": topics})
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_WAIT)


async def _unpublished(engine: AsyncEngine, ids: list[str]) -> tuple[list[str], str]:
    waiting, why = [], ""
    async with engine.connect() as connection:
        for start in range(0, len(ids), _AT_ONCE):
            found = await connection.execute(_STATUS, {"ids": ids[start : start + _AT_ONCE]})
            for row in found:
                if row.status != PUBLISHED:
                    waiting.append(row.event_id)
                    why = row.note or why
    return waiting, why


def sql_body(
    arguments: Mapping[str, Any],
    invocation: Invocation,
    max_bytes: int = MAX_MESSAGE_BYTES,
    traceparent: str | None = None,
) -> Body:
    """`sql` with its `emit`. Raises as :func:`read_events` does."""
    events = read_events(arguments.get("emit") or [], invocation)

    async def run(sql: Sql | None) -> Any:
        assert sql is not None
        result = await run_sql(arguments, sql)
        await insert_events(sql, events, invocation, max_bytes, traceparent)
        return result

    return run


def emit_body(
    arguments: Mapping[str, Any],
    invocation: Invocation,
    max_bytes: int = MAX_MESSAGE_BYTES,
    traceparent: str | None = None,
) -> Body:
    """`outbox.emit` and `kafka.publish`; the result names the events. Raises as :func:`read_events` does."""
    events = read_events(arguments.get("events"), invocation)

    async def run(sql: Sql | None) -> Any:
        assert sql is not None
        return {"events": await insert_events(sql, events, invocation, max_bytes, traceparent)}

    return run


async def nothing(_: Sql | None) -> None:
    """`outbox.release` and `outbox.drop`: the guard's own transaction does it."""
