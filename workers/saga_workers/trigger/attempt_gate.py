"""Lets an attempt run alone in its process: one for a record during which a process ended before.

If such a record ends the process again, no other record is in a handler then, and none is blamed for it. The other
readers make progress between two of these attempts, and commit it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Protocol

from saga_activities.concurrency import Backoff
from saga_workers.trigger.watchdog import Watchdog

SETTLE_TIMEOUT = 60.0
"""Seconds that the other readers have to receive their partitions."""
QUIET_TIMEOUT = 30.0
"""Seconds that attempts in progress have to end."""
_BACKOFF = Backoff(1.0, 16.0)


class GateMember(Protocol):
    """A reader of the process."""

    assigned_at: float | None
    """When it first received partitions (monotonic seconds); None: not yet."""

    async def flush(self) -> None:
        """Commit what has ended."""
        ...


class AttemptGate:
    """Shared by the readers of one event loop. ``members``: the readers that make progress before a lone attempt."""

    def __init__(self, watchdog: Watchdog | None = None) -> None:
        self.watchdog = watchdog or Watchdog()
        self.members: list[GateMember] = []
        self._made_at = time.monotonic()
        self._running = 0
        self._lone = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()
        self._quiet = asyncio.Event()

    @contextlib.asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Enter for an attempt that others may accompany."""
        while not self._open.is_set():
            await self._open.wait()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._quiet.set()

    @contextlib.asynccontextmanager
    async def alone(self, ended: int, timeout: float) -> AsyncIterator[None]:
        """Enter for an attempt that must run alone. ``ended``: how many have ended their process before. ``timeout``:
        seconds after which it has blocked the event loop.
        """
        # Not while others wait behind it: the records that another reader had in hand when the process ended run alone.
        await self._settle(_BACKOFF.delay(ended - 1) if ended else 0.0)
        async with self._lone:
            self._open.clear()
            try:
                await self._wait_quiet()
                for member in self.members:
                    await member.flush()
                with self.watchdog.alone(timeout):
                    yield
            finally:
                self._open.set()

    async def _settle(self, delay: float) -> None:
        """Wait until every member has had partitions for ``delay`` seconds."""
        while True:
            now = time.monotonic()
            times = [member.assigned_at for member in self.members]
            if now - self._made_at > SETTLE_TIMEOUT or all(at is not None and now - at >= delay for at in times):
                return
            await asyncio.sleep(0.1)

    async def _wait_quiet(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(QUIET_TIMEOUT):
                while self._running:
                    self._quiet.clear()
                    await self._quiet.wait()
