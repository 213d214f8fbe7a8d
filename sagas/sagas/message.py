"""One record of a topic, as consumers, bridges and triggers see it."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sagas.builtins_messaging import refused_header, why_refused
from sagas.errors import UsageError
from sagas.step import Event

MAX_ID = 200
"""Characters of a message's id: it is a key of the inbox."""


@dataclass
class Message:
    """A committed record. ``value`` is its JSON, ``headers`` are texts, ``timestamp`` is RFC 3339.

    ``id`` is the same at every delivery: ``ce_id`` with ``ce_source``, else topic, partition and offset. ``attempt``
    counts from 1.
    """

    id: str
    topic: str
    partition: int
    offset: int
    timestamp: str
    key: str | None
    value: Any
    headers: Mapping[str, str]
    attempt: int = 1
    events: list[Event] = field(default_factory=list)
    _sql: Any = None
    _newer: Callable[[str, int], Any] | None = None

    @property
    def sql(self) -> Any:
        """The transaction that holds the inbox row, as ``step.sql``. Raises UsageError outside of a consumer."""
        if self._sql is None:
            raise UsageError("only a consumer has a database: a bridge and a trigger have none")
        return self._sql

    def emit(
        self,
        topic: str,
        *,
        key: str | None = None,
        value: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Publish an event if, and only if, this message's transaction commits.

        Raises UsageError outside of a consumer, and for a header that the engine writes itself.
        """
        _ = self.sql
        if headers and (header := refused_header(headers)) is not None:
            raise UsageError(why_refused(header))
        self.events.append(Event(topic, key, value, headers or {}))

    def newer(self, entity: str, version: int) -> Any:
        """True when this consumer has not yet seen so high a version of ``entity``; remembered in the transaction.

        In an ``async def`` it is awaited. A cancel (version 2) that overtakes its create (version 1) makes that old.
        """
        if self._newer is None:
            raise UsageError("only a consumer remembers versions: a bridge and a trigger have no database")
        return self._newer(entity, version)

    def as_trigger(self) -> dict[str, Any]:
        """What expressions call ``trigger``."""
        return {
            "value": self.value,
            "key": self.key,
            "headers": dict(self.headers),
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp": self.timestamp,
        }


def message_id(headers: Mapping[str, str], topic: str, partition: int, offset: int) -> str:
    """The id of a record; see :class:`Message`. Unique in all topics, and fit to be part of a saga's id."""
    given = headers.get("ce_id", "").strip()
    if not given:
        return _short(f"{topic}-{partition}-{offset}")
    source = headers.get("ce_source", "")
    # CloudEvents: an id is unique in its source only. A UUID is unique anyway, and reads better alone.
    return _short(given if _is_uuid(given) or not source else f"{given}-{_hash(source)[:8]}")


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def _short(text: str) -> str:
    return text if len(text) <= MAX_ID else f"{text[: MAX_ID - 33]}-{_hash(text)[:32]}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
