"""Keeps a guarded transaction alive while its action is busy elsewhere, and only as long as its process lives."""

from __future__ import annotations

import asyncio
from typing import Any

from saga_activities.guard.protocol import Body
from saga_activities.guard.sql_handle import Sql


def kept_alive(body: Body, idle_limit: float | None) -> Body:
    """``body``, with a statement four times within ``idle_limit`` (seconds) while it runs; None: as it is."""
    if idle_limit is None:
        return body
    pause = idle_limit / 4

    async def run(sql: Sql) -> Any:
        over = asyncio.Event()
        speaking = asyncio.create_task(_speak(sql, pause, over))
        try:
            return await body(sql)
        finally:
            over.set()
            # Never cancelled in the middle of a statement: that would cost the connection.
            await asyncio.wait({speaking})

    return run


async def _speak(sql: Sql, pause: float, over: asyncio.Event) -> None:
    while True:
        try:
            async with asyncio.timeout(pause):
                await over.wait()
            return
        except TimeoutError:
            pass
        try:
            await sql.execute("SELECT 1")
        except Exception:  # noqa: BLE001 - the handle remembers it: the transaction is not committed
            return
