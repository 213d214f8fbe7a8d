"""The time by Temporal's clock, which decides what is old enough to be deleted.

A worker with a wrong clock must not delete what others share, nor raise a watermark into the future.
"""

from __future__ import annotations

import logging
import time

from temporalio.client import Client

from saga_workers.temporal.server_clock import measure_server_clock

log = logging.getLogger("saga.upkeep")

_VALID = 600.0
"""Seconds until the clocks are compared again."""

_TRIES = 3

_PAUSE = 30.0
"""Seconds after a comparison that has failed, before the next one."""


class ServerTime:
    """Seconds since the epoch by the server's clock. It continues by the monotonic clock, which nobody sets."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._offset: float | None = None
        self._measured = self._again = 0.0

    async def now(self) -> float | None:
        """The time; None if the clocks could not be compared yet: then nothing may be deleted by age."""
        now = await self._now()
        if now is None:
            log.warning("nothing is purged by age, the clock could not be compared with that of the Temporal server")
        return now

    async def likely(self) -> float:
        """The time; that of this machine if the clocks could not be compared: nothing may be deleted by it."""
        return await self._now() or time.time()

    async def _now(self) -> float | None:
        if (self._offset is None or time.monotonic() - self._measured > _VALID) and time.monotonic() >= self._again:
            await self._measure()
        return None if self._offset is None else self._offset + time.monotonic()

    async def _measure(self) -> None:
        for _ in range(_TRIES):
            ahead = await measure_server_clock(self._client)
            if ahead is not None:
                self._measured = time.monotonic()
                self._offset = time.time() + ahead - self._measured
                return
        self._again = time.monotonic() + _PAUSE
