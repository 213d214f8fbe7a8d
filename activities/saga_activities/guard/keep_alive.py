"""Keepalive for a guarded transaction whose action works outside of the database."""

from __future__ import annotations

import asyncio
from typing import Any

from saga_activities.guard.rules import GuardedBody
from saga_activities.guard.sql_session import SqlSession


def keep_alive(body: GuardedBody, idle_limit: float | None) -> GuardedBody:
    """``body`` with a keepalive statement every quarter of ``idle_limit`` (seconds); None: ``body`` unchanged.

    The keepalive stops with its process, so the server still ends the transaction of a frozen one.
    """
    if idle_limit is None:
        return body
    interval = idle_limit / 4

    async def run(sql: SqlSession) -> Any:
        ended = asyncio.Event()
        pings = asyncio.create_task(_ping(sql, interval, ended))
        try:
            return await body(sql)
        finally:
            ended.set()
            # Not cancelled: cutting off a statement would cost the connection.
            await asyncio.wait({pings})

    return run


async def _ping(sql: SqlSession, interval: float, ended: asyncio.Event) -> None:
    while True:
        try:
            async with asyncio.timeout(interval):
                await ended.wait()
            return
        except TimeoutError:
            pass
        try:
            await sql.execute("SELECT 1")
        except Exception:  # noqa: BLE001 - the session keeps it as first_error: no commit
            return
