"""What a bridge produces for one message."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from saga_activities.guard.codec import to_plain
from saga_workers.trigger.dead_letters import dead_letter
from saga_workers.trigger.records import Record, Unreadable
from saga_workers.trigger.trying import sentence_of
from sagas.builtins_messaging import refused_header, why_refused
from sagas.consumers import Bridge
from sagas.errors import UsageError
from sagas.message import Message
from sagas.step import Event


@dataclass(frozen=True, slots=True)
class Output:
    """``dead``: why the message is given up, when its record is a dead letter."""

    records: tuple[dict[str, Any], ...] = ()
    dead: str | None = None


def outputs(bridge: Bridge, record: Record, group: str) -> Output:
    """Run the bridge's function. What it cannot do becomes a dead letter, in the same transaction."""
    reason = ""
    for number in range(1, bridge.max_attempts + 1):
        try:
            message = record.message()
            message.attempt = number
            return Output(tuple(_produced(bridge, record, message, bridge.function(message))))
        except Unreadable as error:
            reason = str(error)
            break
        except Exception as error:  # noqa: BLE001 - it becomes the reason in the dead letter
            reason = sentence_of(error)
    return Output((dead_letter(record, group, reason),), dead=reason)


def _produced(bridge: Bridge, record: Record, message: Message, answer: Any) -> Iterator[dict[str, Any]]:
    if answer is None:
        return
    several = isinstance(answer, list) and all(isinstance(one, Event) for one in answer)
    for number, one in enumerate(answer if several else [answer]):
        if isinstance(one, Event):
            id = one.id or (f"{message.id}-{number}" if several else message.id)
            headers = {**message.headers, "ce_id": id, **_given(one, message)}
            key = None if one.key is None else str(one.key).encode()
            yield _record(one.topic, key, one.value, list(headers.items()))
        else:
            yield _record(bridge.to, record.key, one, list(record.raw_headers))


def _given(event: Event, message: Message) -> dict[str, str]:
    """The headers of the event that the message has not got. Raises UsageError for one that is the engine's own."""
    given = {name: text for name, text in event.headers.items() if message.headers.get(name) != text}
    if (header := refused_header(given)) is not None:
        raise UsageError(why_refused(header))
    return given


def _record(topic: str, key: bytes | None, value: Any, headers: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    text = json.dumps(to_plain(value), ensure_ascii=False).encode()
    return {"topic": topic, "key": key, "value": text, "headers": list(headers)}
