"""The end of an attempt by this machine's clock, although Temporal's clock, by which it began, may differ from it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from temporalio import activity

log = logging.getLogger("saga.clock")

MeasureClock = Callable[[], Awaitable[float | None]]
"""Seconds by which the server's clock is ahead of this machine's; None if that could not be measured in time."""

TOLERANCE = 1.0
"""Seconds between the server's start of an attempt and its arrival here that need no explanation."""

WARN_FROM = 5.0
_INTERVAL = 30.0
"""Seconds between two measurements."""

_LONGEST = 2.0
"""Seconds that a measurement may take."""


class ServerClock:
    """Knows how far ahead of the server's clock this machine's is.

    An attempt that arrives late was kept from this process, because the process was frozen or busy, or the clocks
    differ. Only a comparison of the clocks distinguishes the two: in the first case the attempt must be refused.
    """

    def __init__(self, measure: MeasureClock | None = None) -> None:
        self._measure = measure
        self._ahead = 0.0
        self._next = 0.0
        self._measuring = asyncio.Lock()

    async def deadline(self, info: activity.Info, timeout: float) -> float:
        """When the attempt ends, in seconds since the epoch by this machine's clock."""
        started = info.started_time.timestamp()
        if info.is_local:  # started by this machine's clock
            return started + timeout
        arrived = time.time()
        if self._measure is not None and abs(arrived - started - self._ahead) > TOLERANCE:
            async with self._measuring:
                if time.monotonic() >= self._next:
                    await self._compare(self._measure)
        return started + timeout + self._ahead

    async def _compare(self, measure: MeasureClock) -> None:
        began = time.monotonic()
        behind = await measure()
        ended = time.monotonic()
        self._next = ended + _INTERVAL
        if behind is None or ended - began > _LONGEST:  # this process may have been frozen in between
            return
        self._ahead = 0.0 if abs(behind) < TOLERANCE else -behind
        if abs(behind) >= WARN_FROM:
            log.warning(
                "clock of this machine is %.1f s %s that of the Temporal server, synchronise them (NTP)",
                abs(behind),
                "behind" if behind > 0 else "ahead of",
            )
