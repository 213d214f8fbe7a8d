"""Runs several cells concurrently: they mostly wait, and each has its own environment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from tests.faults.bulk_environment import BulkCellEnvironment
from tests.faults.cell_environment import CellEnvironment
from tests.faults.cells import Cell, Row, cells
from tests.faults.evidence.bulk_evidence import check_members
from tests.faults.evidence.checker import check
from tests.faults.evidence.evidence import Evidence, gather
from tests.faults.evidence.messages import Messages, check_messages, gather_messages
from tests.faults.messaging import Messaging
from tests.faults.shared_servers import SharedServers, open_environment, open_messaging

MAX_CELLS = 8
"""Cells that run concurrently."""

MAX_CELLS_BESIDE_OTHERS = 5
"""The same while other tests run."""

MAX_ROWS = 2
"""Rows with Kafka that run concurrently; each runs all of its cells together."""


@dataclass(frozen=True)
class CellResult:
    """The evidence of a cell's saga (None: it had none) and of its events, and the violations the checker found."""

    evidence: Evidence | None
    violations: list[str]
    messages: Messages | None = None


class CellRunner:
    """Scheduled cells run ahead of their test; any other runs on demand."""

    def __init__(self, servers: SharedServers, *, beside_others: bool = False) -> None:
        """``beside_others``: other tests run at the same time, and need the machine too."""
        self._ground = servers
        cells_at_once, rows_at_once = (MAX_CELLS_BESIDE_OTHERS, 1) if beside_others else (MAX_CELLS, MAX_ROWS)
        self._room, self._rows = asyncio.Semaphore(cells_at_once), asyncio.Semaphore(rows_at_once)
        self._tasks: dict[str, asyncio.Task[Mapping[str, CellResult]]] = {}

    def schedule(self, scheduled: Iterable[Cell]) -> None:
        for cell in scheduled:
            if cell.id in self._tasks:
                continue
            if cell.row.kafka is None:
                self._tasks[cell.id] = asyncio.create_task(self._run_cell(cell))
            else:
                together = cells((cell.row,))
                self._tasks |= dict.fromkeys(
                    (member.id for member in together), asyncio.create_task(self._run_row(cell.row))
                )

    async def result(self, cell: Cell) -> CellResult:
        """The result of this cell. Raises AssertionError when the fault could not be injected as planned."""
        if cell.id not in self._tasks:
            self.schedule([cell])
        return (await self._tasks[cell.id])[cell.id]

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _run_cell(self, cell: Cell) -> Mapping[str, CellResult]:
        async with self._room, open_environment(cell, self._ground) as env:
            return {cell.id: await self._check(cell, env)}

    async def _run_row(self, row: Row) -> Mapping[str, CellResult]:
        """All cells of a row with Kafka at once, on one relay."""
        async with self._rows, open_messaging(row, self._ground) as messaging, AsyncExitStack() as stack:
            environments = [
                (cell, await stack.enter_async_context(open_environment(cell, self._ground, messaging)))
                for cell in cells((row,))
            ]
            messaging.write_project()
            await messaging.relay()
            results = await asyncio.gather(
                *(self._run_cell_in_row(cell, env, messaging) for cell, env in environments), return_exceptions=True
            )
            failed = [base_exception for base_exception in results if isinstance(base_exception, BaseException)]
            for failure in failed:
                if not isinstance(failure, asyncio.BrokenBarrierError):
                    for process in messaging.processes:
                        failure.add_note(f"--- {process.name}\n{process.tail(15)}")
                    raise failure  # the others only waited for this one
            assert not failed
            return {
                cell.id: result
                for (cell, _), result in zip(environments, results, strict=True)
                if isinstance(result, CellResult)
            }

    async def _run_cell_in_row(self, cell: Cell, env: CellEnvironment, messaging: Messaging) -> CellResult:
        try:
            return await self._check(cell, env)
        except BaseException:
            await messaging.give_up()
            raise

    async def _check(self, cell: Cell, env: CellEnvironment) -> CellResult:
        await env.client()
        await cell.row.run_fault(env)
        if not cell.row.checked:
            return CellResult(None, [])
        story = await env.finished()
        if isinstance(env, BulkCellEnvironment):
            return CellResult(None, await check_members(cell, env))
        messages = await gather_messages(env) if env.messaging is not None else None
        evidence = await gather(env, story)
        violations = check(evidence, cell.expected, cell.row.shape)
        if messages is not None:
            violations += check_messages(messages, evidence.journal)
        return CellResult(evidence, violations, messages)
