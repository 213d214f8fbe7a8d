"""Plays several cells at once: they mostly wait, and each has a world of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tests.faults.cells import Cell
from tests.faults.checker import check
from tests.faults.evidence import gather
from tests.faults.ground import Ground, stage_of

AT_ONCE = 6


class Theatre:
    """Cells that were announced are played ahead of their test; any other when it is asked for."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._room = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[str, asyncio.Task[list[str]]] = {}

    def announce(self, cells: Iterable[Cell]) -> None:
        for cell in cells:
            self._tasks[cell.id] = asyncio.create_task(self._play(cell))

    async def violations(self, cell: Cell) -> list[str]:
        """What the checker says about this cell. Raises AssertionError: the play itself did not go as written."""
        if cell.id not in self._tasks:
            self.announce([cell])
        return await self._tasks[cell.id]

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _play(self, cell: Cell) -> list[str]:
        async with self._room, stage_of(cell, self._ground) as stage:
            await stage.client()
            await cell.row.play(stage)
            if not cell.row.judged:
                return []
            story = await stage.finished()
            return check(await gather(stage, story), cell.expected, cell.row.shape)
