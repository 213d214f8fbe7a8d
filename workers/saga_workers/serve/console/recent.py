"""Values of the board that are read in the background: many who look at it cost no more than one of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_LONGEST_SHOWN = 30.0
"""Seconds for which an earlier value is shown while nobody answers with a new one."""


class Recent(Generic[T]):
    """A value that is read at most every ``max_age`` seconds. ``clock`` returns seconds."""

    def __init__(
        self, read: Callable[[], Awaitable[T]], max_age: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._max_age = max_age
        self._clock = clock
        self._reading: asyncio.Task[T] | None = None
        self._read_at = 0.0
        self._value: T | None = None

    async def get(self, wait: float) -> T | None:
        """The value. If reading takes longer than ``wait`` seconds, the earlier one, or None if that is too old.

        Raises what reading raises.
        """
        if self._reading is None and not self._is_younger_than(self._max_age):
            self._reading = asyncio.create_task(self._read_once())
            self._reading.add_done_callback(_ignore_error)
        if (reading := self._reading) is not None:
            await asyncio.wait({reading}, timeout=wait)
            if reading.done():
                return reading.result()
        return self._value if self._is_younger_than(_LONGEST_SHOWN) else None

    def _is_younger_than(self, seconds: float) -> bool:
        return self._value is not None and self._clock() - self._read_at <= seconds

    async def _read_once(self) -> T:
        try:
            self._value = await self._read()
            self._read_at = self._clock()
            return self._value
        finally:
            self._reading = None


def _ignore_error(reading: asyncio.Task[Any]) -> None:
    """Mark the error as seen: those who wait for the value get it, and perhaps nobody waits any more."""
    if not reading.cancelled():
        reading.exception()
