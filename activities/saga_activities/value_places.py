"""The place of each encrypted value: its table, the key of its row, and its column.

An encrypted value is bound to its place. Otherwise a role that may change rows and has no key could copy the value of
one saga into the row of another one, where it would be decrypted and shown, or published, as a value of that saga.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sagas.text.exact_json import encode_json

ValuePlace = tuple[str | int, ...]
"""Equal for the writer and the reader of a value, and for no other value that the project encrypts."""

PLACE_BYTES = 16


def place_digest(place: ValuePlace) -> bytes:
    """The associated data of a value at this place."""
    return hashlib.sha256(encode_json(place)).digest()[:PLACE_BYTES]


def result_place(saga_id: str, step: str, generation: int, op: str) -> ValuePlace:
    """The result in a row of ``saga_guard``."""
    return "saga_guard", saga_id, step, generation, op


def origin_place(saga_id: str, step: str, generation: int) -> ValuePlace:
    """The origin in a row of ``saga_guard``."""
    return "saga_guard", saga_id, step, generation, "do", "origin"


def image_place(row: Mapping[str, Any], column: str) -> ValuePlace:
    """A column in a row of ``saga_image``, which has its key."""
    return "saga_image", row["saga_id"], row["step"], row["generation"], row["sequence"], column


def lock_place(row_hash: str) -> ValuePlace:
    """The key of a row that a saga has locked, in ``saga_row_lock``."""
    return "saga_row_lock", row_hash


def request_place(step_key: str, column: str) -> ValuePlace:
    """A column in a row of ``saga_request``."""
    return "saga_request", step_key, column


def event_place(row: Mapping[str, Any], column: str) -> ValuePlace:
    """A column in a row of ``saga_outbox``. With its topic: in another one, other consumers would read it in clear."""
    return "saga_outbox", row["event_id"], row["topic"], row["saga_id"], column


def enqueued_place(uid: str) -> ValuePlace:
    """The input in a row of ``saga_enqueued`` that was not delivered."""
    return "saga_enqueued", uid, "input"


def state_place(saga_id: str, started_at: datetime) -> ValuePlace:
    """The snapshot in a row of ``saga_run``."""
    return "saga_run", saga_id, started_at.astimezone(UTC).isoformat(timespec="microseconds")


def dead_letter_place(topic: str, partition: int, offset: int, part: str) -> ValuePlace:
    """The key or the value of the dead letter of a record at this position."""
    return "dead letter", topic, partition, offset, part
