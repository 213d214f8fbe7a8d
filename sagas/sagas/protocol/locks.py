"""Keys, owners and holders of semantic locks: what the machine, the lock tables and the commands agree on."""

from __future__ import annotations

from typing import Any

from sagas.definition.saga_ids import UNPRINTABLE
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.text.printable import printable_line

MAX_KEYS = 100
"""Keys of one saga."""

MAX_KEY = 200
"""Characters of a key."""

MAX_HOLDER = 700
"""Characters of a holder: a primary key of MySQL has 3,072 bytes, and a character up to four."""

_SHOWN = 40


def owner_id(saga_id: str) -> str:
    """The owner of the locks of this saga: the id of its root saga."""
    return saga_id.removesuffix(UNDO_SUFFIX).partition("/")[0]


def holder_id(saga_id: str, generation: int, *, undo: bool = False) -> str:
    """The name under which a run requests and releases: no two runs share it. Raises ValueError if it is too long."""
    holder = f"{saga_id}~{generation}" if generation > 1 else saga_id
    if undo:
        holder += UNDO_SUFFIX
    if len(holder) > MAX_HOLDER:
        raise ValueError(f"the id of a nested saga with `locks` has at most {MAX_HOLDER} characters, not {len(holder)}")
    return holder


def lock_keys(values: Any) -> tuple[str, ...]:
    """The keys in the order of all requests, each once. Raises ValueError if one cannot be a key."""
    if not isinstance(values, list):
        raise ValueError("locks.keys: not a list")
    if len(values) > MAX_KEYS:
        raise ValueError(f"locks.keys: a saga has at most {MAX_KEYS} keys, not {len(values)}")
    return tuple(sorted({_checked_key(value) for value in values}))


def _checked_key(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError(f"locks.keys: a key is a string, not {_kind(value)}")
    shown = printable_line(value[:_SHOWN])
    if not value:
        raise ValueError("locks.keys: a key is empty")
    if len(value) > MAX_KEY:
        raise ValueError(f"locks.keys: the key {shown}… has {len(value)} characters; the maximum is {MAX_KEY}")
    if UNPRINTABLE.search(value):
        raise ValueError(f"locks.keys: the key {shown} must not contain control characters")
    if value != value.strip():
        raise ValueError(f"locks.keys: the key {shown!r} must not begin or end with white space")
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {bool: "a boolean", list: "a list", dict: "a mapping"}.get(type(value), "another value")
