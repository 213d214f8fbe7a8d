"""Pauses and ends the starting of rows."""

from __future__ import annotations

import asyncio
from typing import Literal

from saga_activities.concurrency import wait_first

StopReason = Literal["asked", "failures", "cancelled", "taken over"]


class StartGate:
    """Lets rows start, holds them up while it is paused, and ends the starting when it is stopped."""

    def __init__(self) -> None:
        self.why: StopReason | None = None
        self.paused = False
        self._stopped = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()

    @property
    def stopped(self) -> bool:
        return self.why is not None

    def stop(self, why: StopReason) -> None:
        """End the starting; the first reason counts."""
        self.why = self.why or why
        self._stopped.set()
        self._open.set()

    def pause(self, paused: bool) -> None:
        self.paused = paused
        if paused and not self.stopped:
            self._open.clear()
        else:
            self._open.set()

    async def wait_stopped(self) -> None:
        await self._stopped.wait()

    async def wait_open(self) -> None:
        """Wait until it is neither paused nor, if it is stopped, to be waited for."""
        await self._open.wait()

    async def sleep(self, seconds: float) -> None:
        """Sleep, but not after it has stopped."""
        if seconds > 0 and not self.stopped:
            await wait_first(self.wait_stopped(), timeout=seconds)
