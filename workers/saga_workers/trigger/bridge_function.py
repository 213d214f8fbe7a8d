"""Runs the function of a bridge for one record, and makes its output: the records to produce, or a dead letter."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from saga_activities.bodies.python_action import ordinary_errors
from saga_activities.kafka.record_codec import EncodedRecord, record_value
from saga_activities.messaging.outbox import MAX_MESSAGE_BYTES, check_topic, event_too_large, header_strings, key_text
from saga_activities.own_frames import logging_own_frames
from saga_workers.runtime.logs import fields
from saga_workers.trigger.consumed_record import ConsumedRecord, MalformedRecord
from saga_workers.trigger.dead_letters import dead_letter
from saga_workers.trigger.retry import error_message
from sagas.actions.consumers import Bridge, Message
from sagas.actions.events import Event
from sagas.actions.message_headers import UnreadableHeader
from sagas.builtins.messaging import first_reserved_header, reserved_header_message
from sagas.errors import UsageError

log = logging.getLogger("saga.trigger")


@dataclass(frozen=True, slots=True)
class BridgeOutput:
    """The records to produce; ``dead_letter_reason`` is set if they are a dead letter."""

    records: tuple[dict[str, Any], ...] = ()
    dead_letter_reason: str | None = None


def run_bridge_function(
    bridge: Bridge, record: ConsumedRecord, group: str, max_bytes: int = MAX_MESSAGE_BYTES
) -> BridgeOutput:
    """Run the bridge's function, up to ``max_attempts`` times; a failure becomes a dead letter in the transaction.

    So does an output of more than ``max_bytes``: the client would refuse it, and the session of all partitions end.
    """
    ended = record.delivery.ended
    reason = record.delivery.give_up_reason(bridge.max_attempts) or ""
    for number in range(ended + 1, bridge.max_attempts + 1):
        try:
            message = record.message()
            message.attempt = number
            about = fields(group=group, record=record.position)
            with logging_own_frames(log, bridge.function, bridge.name, number, extra=about), ordinary_errors():
                records = tuple(_records_for(bridge, record, message, bridge.function(message)))
            problem = _size_problem(records, max_bytes)
            if problem is None:
                return BridgeOutput(records)
            reason = problem
            break
        except (MalformedRecord, UnreadableHeader) as error:
            reason = str(error)
            break
        except Exception as error:  # noqa: BLE001 - it becomes the reason in the dead letter
            reason = error_message(error)
    return BridgeOutput((dead_letter(record, group, reason),), dead_letter_reason=reason)


def _records_for(bridge: Bridge, record: ConsumedRecord, message: Message, result: Any) -> Iterator[dict[str, Any]]:
    if result is None:
        return
    several = isinstance(result, list) and all(isinstance(value, Event) for value in result)
    for number, value in enumerate(result if several else [result]):
        if isinstance(value, Event):
            # Also with the number of a single one: without it the id may be that of an event of another message.
            yield _event_record(value, f"{message.id}-{number}", record)
        else:
            yield _producer_record(bridge.to, record.key, value, list(record.raw_headers))


def _event_record(event: Event, default_id: str, record: ConsumedRecord) -> dict[str, Any]:
    """The record of one event. Raises UsageError, UnusableResult and UnicodeEncodeError for what no producer takes: it
    would end the process, or stop the bridge, and the next process would read the same message.
    """
    check_topic(event.topic)
    id = event.id or default_id
    if not isinstance(id, str):
        raise UsageError(f"the id of an event must be a string, not {id!r}")
    own = {"ce_id": id, **_own_headers(event, record)}
    for name in own:
        name.encode()  # the client library crashes on half a surrogate pair in a name
    key = key_text(event.key)
    headers = [
        *((name, raw) for name, raw in record.raw_headers if name not in own),
        *((name, text.encode()) for name, text in own.items()),
    ]
    return _producer_record(event.topic, None if key is None else key.encode(), event.value, headers)


def _own_headers(event: Event, record: ConsumedRecord) -> dict[str, str]:
    """The headers that the event adds or changes. Raises UsageError for a header reserved by the engine."""
    read, headers = record.headers, cast("Any", event.headers)
    if isinstance(headers, Mapping):
        headers = {name: text for name, text in headers.items() if name not in read or text != read[name]}
    given = header_strings(replace(event, headers=headers))
    if (header := first_reserved_header(given)) is not None:
        raise UsageError(reserved_header_message(header))
    return given


def _size_problem(records: Sequence[dict[str, Any]], max_bytes: int) -> str | None:
    """Why one of the records is too large for the client that produces it; None if none is."""
    for produced in records:
        headers = [(name, text or b"") for name, text in produced["headers"]]
        size = EncodedRecord(produced["value"], produced["key"], headers).size
        if size > max_bytes:
            return event_too_large(produced["topic"], size, max_bytes)
    return None


def _producer_record(topic: str, key: bytes | None, value: Any, headers: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return {"topic": topic, "key": key, "value": record_value(value).encode(), "headers": list(headers)}
