"""Wakes shards that have nothing to do: one small question to the database for all of them, many times a second."""

from __future__ import annotations

import asyncio

from sqlalchemy.exc import SQLAlchemyError

from saga_workers.relay.rows import OutboxRows

PERIOD = 0.03
"""Seconds between two questions: a good part of how long an event waits on an idle system."""

PATIENCE = 10.0


class Bell:
    """Rings for a shard when its outbox has new events (or cannot be asked: then the shard finds out why)."""

    def __init__(self, rows: OutboxRows) -> None:
        self._rows = rows
        self._waiting: dict[int, asyncio.Event] = {}
        self._somebody = asyncio.Event()

    async def wait(self, shard: int) -> None:
        """Until the shard has something to publish."""
        rung = self._waiting[shard] = asyncio.Event()
        self._somebody.set()
        try:
            await rung.wait()
        finally:
            self._waiting.pop(shard, None)

    async def run_for_ever(self) -> None:
        """Ask as long as somebody waits."""
        while True:
            await self._somebody.wait()
            await asyncio.sleep(PERIOD)
            shards = sorted(self._waiting)
            if not shards:
                self._somebody.clear()
                continue
            try:
                async with asyncio.timeout(PATIENCE):
                    found = await self._rows.waiting(shards)
            except (SQLAlchemyError, OSError, TimeoutError):
                found = set(shards)
            for shard in found & self._waiting.keys():
                self._waiting[shard].set()
