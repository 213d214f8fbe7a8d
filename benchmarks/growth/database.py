"""A database that a measurement fills, and the cost of what it then does."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.support.measure import cpu_seconds
from saga_activities.connections import DatabaseConnections

CONNECTION = "bench"


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of one piece of work: by the clock, and of CPU in this process and PostgreSQL."""

    clock: float
    cpu: float


Costs = dict[str, Cost]
"""The costs of a measurement by what was done."""


class GrowthDatabase:
    """The engine's database of the benchmark; ``server`` is the process id of PostgreSQL."""

    def __init__(self, connections: DatabaseConnections, server: int) -> None:
        self.connections = connections
        self._server = server

    @property
    def engine(self) -> AsyncEngine:
        return self.connections.engine(CONNECTION)

    async def execute(self, *statements: str) -> None:
        """Execute statements without parameters."""
        async with self.engine.connect() as connection:
            for statement in statements:
                await connection.exec_driver_sql(statement.replace("%", "%%"))

    async def each(self, work: Callable[[], Awaitable[object]], times: int = 1, pieces: int = 1) -> Cost:
        """The cost of each of ``pieces`` that a call of ``work`` does: the median of its calls, the mean of their CPU.

        One more call comes first and does not count.
        """
        if times > 1:
            await work()
        clocks, before = [], self._cpu()
        for _ in range(times):
            begin = time.perf_counter()
            await work()
            clocks.append(time.perf_counter() - begin)
        used = (self._cpu() - before) / times
        return Cost(1000 * statistics.median(clocks) / pieces, 1000 * used / pieces)

    def _cpu(self) -> float:
        return cpu_seconds(self._server) + cpu_seconds(os.getpid())
