"""The yardstick of bulk execution: three transactions with a barrier row for each saga, and no engine at all.

What survives a crash is up to the reader: nobody goes on with a saga whose process has died.
"""

from __future__ import annotations

import asyncio
from typing import Any

from psycopg_pool import AsyncConnectionPool

STEPS = 3
CONCURRENCY = 20


async def run_sagas(url: str, run: str, count: int, accounts: int) -> None:
    """Run ``count`` sagas, :data:`CONCURRENCY` at a time; ``run`` makes their keys unique."""
    numbers = iter(range(count))
    pool: AsyncConnectionPool[Any] = AsyncConnectionPool(url, min_size=CONCURRENCY, max_size=CONCURRENCY, open=False)
    async with pool:
        await pool.wait()
        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(_run_from(pool, numbers, run, accounts))


async def _run_from(pool: AsyncConnectionPool[Any], numbers: Any, run: str, accounts: int) -> None:
    for number in numbers:
        for step in range(STEPS):
            async with pool.connection() as connection, connection.transaction():
                inserted = await connection.execute(
                    "insert into hand_barrier (key, op, result) values (%s, 'do', '1') on conflict do nothing",
                    (f"{run}-{number}/{step}",),
                )
                if inserted.rowcount:
                    await connection.execute(
                        "update account set balance = balance - 1 where id = %s", (f"a{number % accounts}",)
                    )
