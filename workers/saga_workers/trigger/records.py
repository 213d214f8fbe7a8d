"""A record as it was read, byte for byte, and the message that is in it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from saga_activities.kafka.wire import Unreadable, decode, read_headers
from sagas.message import Message, message_id

__all__ = ["Record", "Unreadable"]


class Record:
    """One record of a topic; ``read`` is what the client library gave."""

    def __init__(self, read: Any) -> None:
        self._read = read
        self.topic: str = read.topic()
        self.partition: int = read.partition()
        self.offset: int = read.offset()
        self.key: bytes | None = read.key()
        self.value: bytes | None = read.value()
        self.raw_headers: Sequence[tuple[str, bytes | None]] = tuple(read.headers() or ())

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch, 0 when the record has none."""
        return max(self._read.timestamp()[1], 0)

    @property
    def place(self) -> str:
        """Topic, partition and offset, for people."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @cached_property
    def headers(self) -> dict[str, str]:
        return read_headers(self._read)

    @cached_property
    def id(self) -> str:
        """See :class:`sagas.message.Message`."""
        return message_id(self.headers, self.topic, self.partition, self.offset)

    def message(self) -> Message:
        """A new one at each call. Raises Unreadable, one sentence: the value is not JSON, or the key no text."""
        read = decode(self._read)
        moment = datetime.fromtimestamp(read.timestamp or 0, UTC).isoformat(timespec="milliseconds")
        when = moment.replace("+00:00", "Z")
        return Message(self.id, self.topic, self.partition, self.offset, when, read.key, read.value, self.headers)
