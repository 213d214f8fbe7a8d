"""Heartbeats of long attempts: they say how far the work is, and keep the platform from giving it to somebody else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from saga_activities.attempt import Attempt

BEAT = 1.0
"""Seconds between two heartbeats."""


@contextlib.asynccontextmanager
async def beating(attempt: Attempt) -> AsyncIterator[Attempt]:
    """The same attempt, whose last heartbeat is told again and again while the block runs: also while it waits for the
    guarded transaction of another attempt."""
    told: Any = None

    def heartbeat(details: Any = None) -> None:
        nonlocal told
        told = details
        attempt.heartbeat(details)

    async def beat() -> None:
        while True:
            await asyncio.sleep(BEAT)
            attempt.heartbeat(told)

    task = asyncio.create_task(beat())
    try:
        yield replace(attempt, heartbeat=heartbeat)
    finally:
        task.cancel()
