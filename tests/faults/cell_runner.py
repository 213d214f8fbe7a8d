"""Plays several cells at once: they mostly wait, and each has a world of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from tests.faults.cell_environment import Stage
from tests.faults.cells import Cell, Row, cells
from tests.faults.evidence.checker import check
from tests.faults.evidence.evidence import Evidence, gather
from tests.faults.evidence.messages import Messages, check_messages, gather_messages
from tests.faults.messaging import Channel
from tests.faults.shared_servers import Ground, channel_of, stage_of

AT_ONCE = 8
"""Cells that are played at once."""

ROWS_AT_ONCE = 2
"""Rows with Kafka: each plays its cells together."""


@dataclass(frozen=True)
class Judgement:
    """What was seen of a cell's saga (None: it had none) and of its events, and the checker's sentences."""

    evidence: Evidence | None
    violations: list[str]
    messages: Messages | None = None


class Theatre:
    """Cells that were announced are played ahead of their test; any other when it is asked for."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._room, self._rows = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(ROWS_AT_ONCE)
        self._tasks: dict[str, asyncio.Task[Mapping[str, Judgement]]] = {}

    def announce(self, announced: Iterable[Cell]) -> None:
        for cell in announced:
            if cell.id in self._tasks:
                continue
            if cell.row.kafka is None:
                self._tasks[cell.id] = asyncio.create_task(self._play(cell))
            else:
                together = cells((cell.row,))
                self._tasks |= dict.fromkeys(
                    (one.id for one in together), asyncio.create_task(self._play_row(cell.row))
                )

    async def judgement(self, cell: Cell) -> Judgement:
        """What came of this cell. Raises AssertionError: the play itself did not go as written."""
        if cell.id not in self._tasks:
            self.announce([cell])
        return (await self._tasks[cell.id])[cell.id]

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _play(self, cell: Cell) -> Mapping[str, Judgement]:
        async with self._room, stage_of(cell, self._ground) as stage:
            return {cell.id: await self._judge(cell, stage)}

    async def _play_row(self, row: Row) -> Mapping[str, Judgement]:
        """All cells of a row with Kafka at once, on one relay."""
        async with self._rows, channel_of(row, self._ground) as channel, AsyncExitStack() as stack:
            stages = [
                (cell, await stack.enter_async_context(stage_of(cell, self._ground, channel))) for cell in cells((row,))
            ]
            channel.write_project()
            await channel.relay()
            found = await asyncio.gather(
                *(self._play_in_row(cell, stage, channel) for cell, stage in stages), return_exceptions=True
            )
            failed = [one for one in found if isinstance(one, BaseException)]
            for one in failed:
                if not isinstance(one, asyncio.BrokenBarrierError):
                    for process in channel.processes:
                        one.add_note(f"--- {process.name}\n{process.tail(15)}")
                    raise one  # the others only waited for this one
            assert not failed
            return {cell.id: one for (cell, _), one in zip(stages, found, strict=True) if isinstance(one, Judgement)}

    async def _play_in_row(self, cell: Cell, stage: Stage, channel: Channel) -> Judgement:
        try:
            return await self._judge(cell, stage)
        except BaseException:
            await channel.give_up()
            raise

    async def _judge(self, cell: Cell, stage: Stage) -> Judgement:
        await stage.client()
        await cell.row.play(stage)
        if not cell.row.judged:
            return Judgement(None, [])
        story = await stage.finished()
        messages = await gather_messages(stage) if stage.channel is not None else None
        evidence = await gather(stage, story)
        violations = check(evidence, cell.expected, cell.row.shape)
        if messages is not None:
            violations += check_messages(messages, evidence.journal)
        return Judgement(evidence, violations, messages)
