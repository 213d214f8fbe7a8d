"""Plays several cells at once: they mostly wait, and each has a world of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from tests.faults.cells import Cell
from tests.faults.checker import check
from tests.faults.evidence import Evidence, gather
from tests.faults.ground import Ground, stage_of

AT_ONCE = 6


@dataclass(frozen=True)
class Judgement:
    """What was seen of a cell's saga (None: it had none), and the checker's sentences."""

    evidence: Evidence | None
    violations: list[str]


class Theatre:
    """Cells that were announced are played ahead of their test; any other when it is asked for."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._room = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[str, asyncio.Task[Judgement]] = {}

    def announce(self, cells: Iterable[Cell]) -> None:
        for cell in cells:
            self._tasks[cell.id] = asyncio.create_task(self._play(cell))

    async def judgement(self, cell: Cell) -> Judgement:
        """What came of this cell. Raises AssertionError: the play itself did not go as written."""
        if cell.id not in self._tasks:
            self.announce([cell])
        return await self._tasks[cell.id]

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _play(self, cell: Cell) -> Judgement:
        async with self._room, stage_of(cell, self._ground) as stage:
            await stage.client()
            await cell.row.play(stage)
            if not cell.row.judged:
                return Judgement(None, [])
            story = await stage.finished()
            evidence = await gather(stage, story)
            return Judgement(evidence, check(evidence, cell.expected, cell.row.shape))
