"""Reads the fields of what any client may have sent: a malformed one is refused, and fails no workflow task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from temporalio.api.common.v1 import Payload

from sagas.errors import SagaError
from sagas.workflow.failures import refused_error
from sagas.workflow.json_payloads import UnreadableValue, read_payload

MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    SagaError,
    TypeError,
    UnreadableValue,
    ValueError,
)
"""The errors of reading a value that any client may have sent."""

LAST_SECOND = 253_402_300_799
"""The end of the year 9999 in seconds since the epoch: no later time can be written."""

LONGEST_WAIT = 100 * 366 * 24 * 3600
"""Seconds, for all durations."""

LONGEST_NAME = 1000
"""Bytes that Temporal accepts for the name of an activity or a task queue."""

T = TypeVar("T")


def read_client_value(expected: str, sent: Payload | Any, read: Callable[[Any], T]) -> T:
    """Return ``read`` of what was sent, which is a payload or its value.

    Raises SagaApplicationError with ``expected``, which says what it should be, if that raises anything.
    """
    try:
        return read(read_payload(sent) if isinstance(sent, Payload) else sent)
    except MALFORMED:
        raise refused_error(expected) from None


def text(value: Any, *, longest: int | None = None) -> str:
    """The value. Raises TypeError or ValueError if it is not a text of 1 to ``longest`` bytes."""
    if not isinstance(value, str):
        raise TypeError(type(value).__name__)
    if longest is not None and not 1 <= len(value.encode()) <= longest:
        raise ValueError(value)
    return value


def optional_text(value: Any) -> str | None:
    """The value. Raises TypeError if it is neither None nor a text."""
    return None if value is None else text(value)


def optional_flag(value: Any) -> bool | None:
    """The value. Raises TypeError if it is neither None nor a truth value."""
    if value is not None and not isinstance(value, bool):
        raise TypeError(type(value).__name__)
    return value


def number(value: Any, least: float, most: float) -> float:
    """The value as a float. Raises TypeError or ValueError if it is not a number from ``least`` to ``most``."""
    if isinstance(value, bool):
        raise TypeError(type(value).__name__)
    if not least <= value <= most:
        raise ValueError(value)
    return float(value)


def whole_number(value: Any, least: int, most: int) -> int:
    """The value. Raises TypeError or ValueError if it is not an integer from ``least`` to ``most``."""
    if not isinstance(value, int):
        raise TypeError(type(value).__name__)
    number(value, least, most)
    return value
