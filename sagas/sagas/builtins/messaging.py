"""The arguments of the steps that emit events as JSON Schema, and the operations that the engine adds to them.

Data only: saga_activities.outbox writes the events, the relay publishes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EMIT = "outbox.emit"
PUBLISH = "kafka.publish"
EMITTERS = (EMIT, PUBLISH)
"""Built-in actions whose only effect is events."""

RELEASE = "outbox.release"
DROP = "outbox.drop"
"""What the engine adds to a step with held events: its `confirm`, and the `compensate` of one that does nothing else.
Neither has an action of its own: the guard's transactions of confirm and undo release and drop, whatever runs there."""

UNTIL_PUBLISHED = "published"

_INTERNAL_TOPICS = "__consumer_offsets|__transaction_state|__share_group_state|__cluster_metadata"

TOPIC_NAME = rf"(?!(?:{_INTERNAL_TOPICS}|\.\.?)$)[A-Za-z0-9._-]{{1,249}}"
"""A name that Kafka allows for a topic; all others it refuses, however long one waits. Into topics of its own it lets
nobody write: a transaction with such an event would be aborted again and again, with all others in it."""

FORM_DESCRIPTION = "x-form"
"""In a schema: the words for its ``pattern``, which people are shown instead of the regular expression."""

TOPIC: dict[str, Any] = {
    "type": "string",
    "pattern": f"^{TOPIC_NAME}$",
    FORM_DESCRIPTION: "a name that Kafka allows for a topic: 1 to 249 letters, digits, `.`, `_` and `-`, "
    "and none of Kafka's own",
}

_ENGINE_HEADER_PREFIXES = ("saga", "ce_", "content-type")
_REPLY_HEADERS = ("sagakey", "sagaoutcome", "sagareplyto")
"""A saga or a consumer may answer a command itself, refuse, or ask for an answer, with an event."""

_STRING: dict[str, Any] = {"type": "string", "minLength": 1}
_EVENT_FIELDS: dict[str, Any] = {
    "topic": TOPIC,
    "key": {},
    "value": {},
    "headers": {"type": "object"},
    "hold": {"type": "boolean"},
}


def _object(properties: dict[str, Any], required: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


EVENT = _object(_EVENT_FIELDS, ("topic", "value"))
"""One event of a list; ``hold`` has to be literal, for the definition depends on it."""

EVENTS = {"type": "array", "minItems": 1, "items": EVENT}
EMIT_PARAMETERS = _object({"connection": _STRING, **_EVENT_FIELDS, "events": EVENTS}, ("connection",))
PUBLISH_PARAMETERS = _object({**_EVENT_FIELDS, "events": EVENTS, "wait": {"enum": [UNTIL_PUBLISHED]}})
NO_PARAMETERS = _object({})


def events_long_form(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an emitter with `events`, whether one event or a list was written."""
    rest = {name: value for name, value in arguments.items() if name not in _EVENT_FIELDS}
    one = {name: value for name, value in arguments.items() if name in _EVENT_FIELDS}
    return {**rest, "events": [one]} if one and "events" not in rest else arguments


def events_of(uses: str, arguments: Mapping[str, Any]) -> list[Any]:
    """The events a built-in action writes, as far as they are written out; arguments in their long form."""
    events = arguments.get("emit" if uses == "sql" else "events") if uses in ("sql", *EMITTERS) else None
    return events if isinstance(events, list) else []


def is_reserved(header: str) -> bool:
    """True for a header that a command cannot be given, because the engine writes it."""
    return header.lower().startswith(_ENGINE_HEADER_PREFIXES)


def first_reserved_header(headers: Mapping[str, Any]) -> str | None:
    """The first header that an event cannot be given, because the engine writes it; None when there is none."""
    return next((name for name in headers if is_reserved(name) and name not in _REPLY_HEADERS), None)


def reserved_header_message(header: str) -> str:
    """Why an event cannot be given this header, in one sentence."""
    return f"the header `{header}` of an event is the engine's own: choose another name"


def is_held(event: Any) -> bool:
    """True when this event, as written, waits for the commit point."""
    return isinstance(event, Mapping) and event.get("hold") is True


# `kafka.request`: the facts about a command that is answered by a reply.
#
# Facts only: how the command is written and its reply recorded is the business of activities/request, and who listens
# for replies that of workers/replies.


REQUEST = "kafka.request"

REPLY_PROBE = "kafka.reply"
"""The probe that the engine gives to a request: it looks whether the reply has been recorded meanwhile. A command that
was never written it sees to it that none will be, so its `absent` can be believed."""

REQUEST_TIMEOUT = 300.0
"""Seconds one attempt waits for the reply where nothing is said. The other end may be a queue away, or asleep."""

REQUEST_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "topic": TOPIC,
        "reply_topic": TOPIC,
        "key": {},
        "value": {},
        "headers": {"type": "object"},
    },
    "required": ["topic", "value"],
    "additionalProperties": False,
}
"""``reply_topic`` has to be literal: who listens for replies reads it in the definitions."""


def default_reply_topic(prefix: str) -> str:
    """Where replies go unless the step says something else; ``prefix`` is that of ``[kafka]``."""
    return f"{prefix}-replies"
