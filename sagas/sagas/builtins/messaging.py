"""The built-in actions for events and for commands with replies: their JSON Schemas and fixed names.

Data only: activities/saga_activities writes events and commands, the relay publishes them, and workers/saga_workers
consumes the replies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sagas.builtins.schemas import STRING, object_schema
from sagas.text.shortening import shorten

EMIT = "outbox.emit"
PUBLISH = "kafka.publish"
EMITTERS = (EMIT, PUBLISH)
"""Built-in actions whose only effect is to emit events."""

RELEASE = "outbox.release"
DROP = "outbox.drop"
"""The operations that the engine adds to a step with held events: its `confirm`, and its `compensate` if it has no
other effect. Neither runs an action of its own: the guard's transactions of confirm and undo always release or drop."""

UNTIL_PUBLISHED = "published"

_INTERNAL_TOPICS = "__consumer_offsets|__transaction_state|__share_group_state|__cluster_metadata"

_NOT_INTERNAL = rf"(?!(?:{_INTERNAL_TOPICS}|\.\.?)$)"

TOPIC_NAME = rf"{_NOT_INTERNAL}[A-Za-z0-9._-]{{1,249}}"
"""A valid topic name that is not one of Kafka's internal topics. Kafka refuses all other names permanently, and
refuses writes to internal topics: a transaction with such an event would abort on every attempt, and with it all
other events in it."""


_TOPIC = re.compile(TOPIC_NAME)


def topic_problem(topic: object) -> str | None:
    """The sentence about what is not the name of a topic to write; None for a valid name."""
    if isinstance(topic, str) and _TOPIC.fullmatch(topic):
        return None
    shown = shorten(topic, 60) if isinstance(topic, str) else topic
    return (
        f"{shown!r} is not a valid topic name: use 1 to 249 letters, digits, `.`, `-` and `_`, and no internal topic "
        "of Kafka"
    )


MAX_SOURCE_TOPIC = 245
"""Maximum characters of a topic that has a topic `….dlq` for its dead letters."""

SOURCE_TOPIC_NAME = rf"{_NOT_INTERNAL}[A-Za-z0-9._-]{{1,{MAX_SOURCE_TOPIC}}}"
"""A valid name of a topic to read."""

SOURCE_FORM = (
    f"the name of a topic to read: 1 to {MAX_SOURCE_TOPIC} letters, digits, `.`, `_` and `-` (the topic of its dead "
    "letters has more), and no internal topic of Kafka"
)

FORM_DESCRIPTION = "x-form"
"""The keyword in a schema that describes its ``pattern``, or its mapping, in words, for error messages."""

TOPIC: dict[str, Any] = {
    "type": "string",
    "pattern": f"^{TOPIC_NAME}$",
    FORM_DESCRIPTION: "a valid topic name: 1 to 249 letters, digits, `.`, `_` and `-`, and no internal topic of Kafka",
}

_SOURCE_TOPIC = {"type": "string", "pattern": f"^{SOURCE_TOPIC_NAME}$", FORM_DESCRIPTION: SOURCE_FORM}

_ENGINE_HEADER_PREFIXES = ("saga", "ce_", "content-type")
_REPLY_HEADERS = ("sagakey", "sagaoutcome", "sagareplyto", "sagatoken")
"""Engine headers that an event may set: a saga or a consumer may itself answer or reject a command, or request a
reply, with an event."""

_EVENT_FIELDS: dict[str, Any] = {
    "topic": TOPIC,
    "key": {},
    "value": {},
    "headers": {"type": "object"},
    "hold": {"type": "boolean"},
}


EVENT = object_schema(_EVENT_FIELDS, ("topic", "value"))
"""One event of a list; ``hold`` must be a literal, because the form of the definition depends on it."""

EVENTS = {"type": "array", "minItems": 1, "items": EVENT}
EMIT_PARAMETERS = object_schema({"connection": STRING, **_EVENT_FIELDS, "events": EVENTS}, ("connection",))
PUBLISH_PARAMETERS = object_schema({**_EVENT_FIELDS, "events": EVENTS, "wait": {"enum": [UNTIL_PUBLISHED]}})


def events_long_form(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an emitter in the form with `events`, for one event or a list."""
    other_arguments = {name: value for name, value in arguments.items() if name not in _EVENT_FIELDS}
    event = {name: value for name, value in arguments.items() if name in _EVENT_FIELDS}
    return {**other_arguments, "events": [event]} if event and "events" not in other_arguments else arguments


def events_of(uses: str, arguments: Mapping[str, Any]) -> list[Any]:
    """The literal list of events of a built-in action, from arguments in the long form; else empty."""
    events = arguments.get("emit" if uses == "sql" else "events") if uses in ("sql", *EMITTERS) else None
    return events if isinstance(events, list) else []


def is_reserved(header: str) -> bool:
    """True for a header that the engine writes, so a command must not set it."""
    return header.lower().startswith(_ENGINE_HEADER_PREFIXES)


def first_reserved_header(headers: Mapping[str, Any]) -> str | None:
    """The first header that an event must not set, because the engine writes it; None if there is none."""
    return next((name for name in headers if is_reserved(name) and name not in _REPLY_HEADERS), None)


def reserved_header_message(header: str) -> str:
    """The error message for an event that sets this header."""
    return f"the header `{header}` of an event is reserved for the engine: choose another name"


def is_held(event: Any) -> bool:
    """True if this event, as written, waits for the commit point."""
    return isinstance(event, Mapping) and event.get("hold") is True


# `kafka.request`: a command that is answered by a reply
REQUEST = "kafka.request"

REPLY_PROBE = "kafka.reply"
"""The probe that the engine gives to a request: it checks whether the reply has been recorded. If the command was
never written, the probe prevents it from being written later, so its `absent` is reliable."""

REQUEST_TIMEOUT = 300.0
"""Default timeout in seconds of one attempt, which waits for the reply; the participant may be slow or offline."""

REQUEST_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "topic": TOPIC,
        "reply_topic": _SOURCE_TOPIC,
        "key": {},
        "value": {},
        "headers": {"type": "object"},
    },
    "required": ["topic", "value"],
    "additionalProperties": False,
}
"""``reply_topic`` must be a literal: the consumers of replies read it from the definitions."""


def default_reply_topic(prefix: str) -> str:
    """The topic of replies unless the step names one; ``prefix`` is that of ``[kafka]``."""
    return f"{prefix}-replies"
