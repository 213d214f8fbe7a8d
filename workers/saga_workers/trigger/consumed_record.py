"""A consumed Kafka record, byte for byte, and the message decoded from it."""

from __future__ import annotations

import hashlib
import logging
import math
from functools import cached_property
from typing import Any

from saga_activities.kafka.dead_letter_headers import groups_of_resent
from saga_activities.kafka.record_codec import (
    MalformedRecord,
    RawHeaders,
    decode,
    decode_headers,
    format_time,
    raw_headers,
)
from saga_workers.runtime.logs import fields
from saga_workers.trigger.delivery import Delivery
from sagas.actions.consumers import Message, message_id
from sagas.actions.message_headers import readable_headers
from sagas.protocol.payloads import arguments_hash
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

__all__ = ["ConsumedRecord", "MalformedRecord"]

OUTCOME_HEADER, REJECTED_OUTCOME = "sagaoutcome", "rejected"
_ONCE = Delivery()

log = logging.getLogger("saga.trigger")


class ConsumedRecord:
    """One record of a topic with this id; wraps the client library's message.

    ``delivery``: how it is delivered. ``taken_over``: when its reader took the partition over (monotonic seconds); None
    if the record came afterwards, so that no other process can have handled it.
    """

    def __init__(
        self, message: Any, topic_id: str = "", delivery: Delivery = _ONCE, *, taken_over: float | None = math.inf
    ) -> None:
        self._message = message
        self.topic_id = topic_id
        self.taken_over = taken_over
        self.delivery = delivery
        self.topic: str = message.topic()
        self.partition: int = message.partition()
        self.offset: int = message.offset()
        self.key: bytes | None = message.key()
        self.value: bytes | None = message.value()
        self.malformed: str | None = None
        self.was_read = False
        self._digest: str | None = None
        self.raw_headers: RawHeaders = ()
        try:
            self.raw_headers = raw_headers(message)
        except MalformedRecord as error:
            self.malformed = str(error)

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch; 0 if the record has none."""
        return max(self._message.timestamp()[1], 0)

    @property
    def position(self) -> str:
        """topic/partition/offset, for logs and messages."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    def is_for(self, group: str) -> bool:
        """False, with a line in the log, for a dead letter of another group that was sent again: this one has handled
        it. If no reader has the group, the log is all that tells so.
        """
        groups = groups_of_resent(self.topic, self.raw_headers)
        if not groups or group in groups:
            return True
        others = shorten(printable_line(", ".join(sorted(groups))))
        log.info("a dead letter that was sent again is for %s", others, extra=fields(group=group, record=self.position))
        return False

    @cached_property
    def headers(self) -> dict[str, str | None]:
        """The headers that can be read; see :meth:`message` for the others."""
        return readable_headers(decode_headers(self.raw_headers))

    @cached_property
    def id(self) -> str:
        """See :class:`sagas.actions.consumers.Message`."""
        return message_id(self.headers, self.topic, self.partition, self.offset, self.topic_id)

    @property
    def digest(self) -> str:
        """SHA-256 of key and value: the same for equal JSON values; of their bytes where :meth:`message` has failed."""
        assert self.was_read  # reading a value may take long
        return self._digest or self._digest_of_bytes

    @cached_property
    def _digest_of_bytes(self) -> str:
        parts = (b"null" if part is None else b"%d:%b" % (len(part), part) for part in (self.key, self.value))
        return hashlib.sha256(b"".join(parts)).hexdigest()

    def message(self) -> Message:
        """Decode a new message. Raises MalformedRecord if a part of it cannot be used by anyone."""
        self.was_read = True
        if self.malformed is not None:
            raise MalformedRecord(self.malformed)
        read = decode(self._message)
        self._digest = self._digest or arguments_hash({"key": read.key, "value": read.value})
        when = format_time(read.timestamp or 0).decode()
        return Message(self.id, self.topic, self.partition, self.offset, when, read.key, read.value, read.headers)
