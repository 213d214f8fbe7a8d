"""Heartbeats of long attempts: they say how far the work is, and keep the platform from giving it to somebody else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from activities.attempt import Attempt

BEAT = 1.0
"""Seconds between two heartbeats."""


class Beating:
    """What an attempt is doing, told again and again while the block runs."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._told: dict[str, Any] = {}

    def say(self, doing: str) -> None:
        """The next part of the work has begun."""
        self._told = {"doing": doing}
        self._attempt.heartbeat(self._told)

    def add(self, values: Mapping[str, Any]) -> None:
        """How far it is; told with the next beat."""
        self._told.update(values)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async def beat() -> None:
            while True:
                await asyncio.sleep(BEAT)
                self._attempt.heartbeat(self._told)

        task = asyncio.create_task(beat())
        try:
            yield
        finally:
            task.cancel()
