"""Values of the board that are read in the background: many who look at it cost no more than one of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """A value that is read at most every ``max_age`` seconds."""

    def __init__(self, read: Callable[[], Awaitable[T]], max_age: float) -> None:
        self._read = read
        self._max_age = max_age
        self._reading: asyncio.Task[T] | None = None
        self._read_at = 0.0
        self._value: T | None = None

    async def get(self, wait: float) -> T | None:
        """The value; the earlier one, or None, if reading takes longer than ``wait`` seconds. Raises what it raises."""
        if self._reading is None and (self._value is None or time.monotonic() - self._read_at > self._max_age):
            self._reading = asyncio.create_task(self._begin())
        if (reading := self._reading) is not None:
            await asyncio.wait({reading}, timeout=wait)
            if reading.done():
                self._reading = None if self._reading is reading else self._reading
                self._value = reading.result()
        return self._value

    async def _begin(self) -> T:
        try:
            return await self._read()
        finally:
            self._read_at = time.monotonic()
