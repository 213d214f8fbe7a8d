"""Wakes idle shards when their outbox has new events: one small, frequent query for all of them together.

On PostgreSQL a thread polls, over a connection that it keeps while shards wait: a poll is then one prepared statement
and a fifteenth of what it costs through the event loop, so that polls can be frequent on an idle system.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq import ExecStatus, Format
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_workers.runtime.database_access import driver_message

log = logging.getLogger("saga.relay")

POLL_INTERVAL = 0.03
"""Seconds between two polls, and after one that failed; a large part of an event's latency on an idle system."""

THREAD_POLL_INTERVAL = 0.005
"""Seconds between two polls of a thread, as long as there were events within ``QUIET_AFTER`` seconds."""

QUIET_POLL_INTERVAL = 0.015
QUIET_AFTER = 2.0

POLL_TIMEOUT = 3.0


class Wakeup:
    """Wakes a shard when its outbox has new events, or when the query fails: the shard then meets the error itself."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._waiting: dict[int, asyncio.Event] = {}
        self._queries: dict[int, str] = {}
        self._has_waiters = asyncio.Event()
        self._thread = _PollingThread() if engine.dialect.name == "postgresql" else None

    async def wait(self, shard: int, query: str) -> None:
        """Wait until the shard has something to publish: until ``query`` returns its number."""
        rung = self._waiting[shard] = asyncio.Event()
        self._queries[shard] = query
        self._has_waiters.set()
        if self._thread is not None:
            self._thread.interrupted.set()  # it polls for the others only
        try:
            await rung.wait()
        finally:
            self._waiting.pop(shard, None)

    async def run_forever(self) -> None:
        """Poll the database while at least one shard waits."""
        while True:
            await self._has_waiters.wait()
            shards = sorted(self._waiting)
            if not shards:
                self._has_waiters.clear()
                continue
            try:
                written = await self._poll(shards)
            except (SQLAlchemyError, psycopg.Error, OSError, TimeoutError) as error:
                log.debug("new events not polled: %s", driver_message(error))
                written = set(shards)
                await asyncio.sleep(POLL_INTERVAL)
            for shard in written & self._waiting.keys():
                self._waiting[shard].set()
                del self._waiting[shard]

    async def _poll(self, shards: Sequence[int]) -> set[int]:
        """Return those of the shards that have new events; may be empty."""
        if self._thread is not None:
            self._thread.interrupted.clear()
            if sorted(self._waiting) != shards:
                return set()
            return await self._poll_in_thread(self._thread, self._query(shards))
        await asyncio.sleep(POLL_INTERVAL)
        async with asyncio.timeout(POLL_TIMEOUT), self._engine.connect() as connection:
            return set((await connection.exec_driver_sql(self._query(shards))).scalars())

    def _query(self, shards: Sequence[int]) -> str:
        """One query for all of them."""
        return " UNION ALL ".join(self._queries[shard] for shard in shards)

    async def _poll_in_thread(self, thread: _PollingThread, query: str) -> set[int]:
        async with asyncio.timeout(POLL_TIMEOUT):
            connection = await self._engine.connect()
        try:
            raw: Any = (await connection.get_raw_connection()).driver_connection
            return await thread.poll(raw.pgconn, query)
        except BaseException:
            await connection.invalidate()
            raise
        finally:
            await connection.close()


class _PollingThread:
    """Repeats a query until it returns rows. ``interrupted`` ends that early, without rows."""

    def __init__(self) -> None:
        self.interrupted = threading.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="relay-wakeup")
        self._answered_at = self._found_at = 0.0

    async def poll(self, connection: Any, query: str) -> set[int]:
        """The numbers in the rows. ``connection``, of libpq, is used by nobody else meanwhile.

        Raises psycopg.Error, and TimeoutError if the server does not answer; the connection is unusable then.
        """
        self._answered_at = time.monotonic()
        polling = asyncio.get_running_loop().run_in_executor(self._executor, self._repeat, connection, query.encode())
        try:
            while not polling.done():
                await asyncio.wait({polling}, timeout=POLL_TIMEOUT / 2)
                if not polling.done() and time.monotonic() - self._answered_at > POLL_TIMEOUT:
                    raise TimeoutError
            return polling.result()
        finally:
            if not polling.done():
                await self._end(polling, connection)

    def _repeat(self, connection: Any, query: bytes) -> set[int]:
        _check(connection.prepare(b"", query))  # without a name it lasts until the next user of the connection
        while True:
            result = _check(connection.exec_prepared(b"", [], result_format=Format.TEXT))
            self._answered_at = time.monotonic()
            shards = {int(result.get_value(row, 0) or b"") for row in range(result.ntuples)}
            if shards:
                self._found_at = self._answered_at
            is_quiet = self._answered_at - self._found_at > QUIET_AFTER
            if shards or self.interrupted.wait(QUIET_POLL_INTERVAL if is_quiet else THREAD_POLL_INTERVAL):
                return shards

    async def _end(self, polling: asyncio.Future[set[int]], connection: Any) -> None:
        """End the polls; if the server does not answer, by closing the connection below it."""
        self.interrupted.set()
        await asyncio.wait({polling}, timeout=1.0)
        if not polling.done():
            with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.socket)) as below:
                below.shutdown(socket.SHUT_RDWR)
            await asyncio.wait({polling}, timeout=1.0)
        if polling.done() and not polling.cancelled():
            polling.exception()  # the caller raises its own


def _check(result: Any) -> Any:
    if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
        raise psycopg.OperationalError(result.get_error_message())
    return result
