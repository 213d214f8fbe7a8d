"""The rules for keys of semantic locks: for the checks of definitions, and for the saga that requests it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sagas.definition.saga_ids import UNPRINTABLE
from sagas.input_limits import MAX_LOCK_KEY_LENGTH, MAX_LOCK_KEYS
from sagas.text.exact_json import number_text
from sagas.text.printable import printable_line

_SHOWN = 40


def checked_lock_keys(values: Any) -> tuple[str, ...]:
    """The keys in the order of all requests, each once. Raises ValueError if one cannot be a key."""
    if not isinstance(values, list):
        raise ValueError("locks.keys: not a list")
    if len(values) > MAX_LOCK_KEYS:
        raise ValueError(f"locks.keys: a saga has at most {MAX_LOCK_KEYS} keys, not {len(values)}")
    return tuple(sorted({_checked_key(value) for value in values}))


def _checked_key(value: Any) -> str:
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        value = number_text(value)
    if not isinstance(value, str):
        raise ValueError(f"locks.keys: a key is a string, not {_kind(value)}")
    shown = printable_line(value[:_SHOWN])
    if not value:
        raise ValueError("locks.keys: a key is empty")
    if len(value) > MAX_LOCK_KEY_LENGTH:
        raise ValueError(
            f"locks.keys: the key {shown}… has {len(value)} characters; the maximum is {MAX_LOCK_KEY_LENGTH}"
        )
    if UNPRINTABLE.search(value):
        raise ValueError(f"locks.keys: the key {shown} must not contain control characters")
    if value != value.strip():
        raise ValueError(f"locks.keys: the key {shown!r} must not begin or end with white space")
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {bool: "a boolean", list: "a list", dict: "a mapping"}.get(type(value), "another value")
