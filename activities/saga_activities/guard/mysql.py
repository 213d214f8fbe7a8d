"""The guard's transaction on MySQL and MariaDB."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from saga_activities.guard.sqlalchemy_transaction import (
    GUARD_COLUMNS,
    GUARD_PLACEHOLDERS,
    NOT_BELOW_WATERMARK,
    SELECT_DO,
    SELECT_ROWS,
    SqlAlchemyTransaction,
)
from saga_activities.session_settings import CLEAN_MYSQL

_NOT_ROLLED_BACK = 1196
"""The warning of ROLLBACK after changes of tables without transactions."""


class MysqlTransaction(SqlAlchemyTransaction):
    """READ COMMITTED unless configured otherwise: no gap locks, and every read sees what it waited for.

    Uses INSERT IGNORE, because a duplicate-key error would take a lock that deadlocks two undos.
    :class:`EntryKey` ensures that IGNORE hides no other error.
    """

    _insert_first_row = text(
        f"INSERT IGNORE INTO saga_guard ({GUARD_COLUMNS})"
        f" SELECT {GUARD_PLACEHOLDERS} FROM DUAL WHERE {NOT_BELOW_WATERMARK}"
    )
    _thread_id: int | None = None
    _lock_share = 0.9
    """The fraction of the time left that one wait for a lock may take."""
    _insert_row = text(f"INSERT IGNORE INTO saga_guard ({GUARD_COLUMNS}) VALUES ({GUARD_PLACEHOLDERS})")
    _select_rows = text(f"{SELECT_ROWS} LOCK IN SHARE MODE")
    _lock_do = text(f"{SELECT_DO} FOR UPDATE")
    _start = "START TRANSACTION"

    async def _begin(self) -> None:
        """The limits are session variables in whole seconds, so most transactions find them set already."""
        raw: Any = (await self._connection.get_raw_connection()).driver_connection
        self._thread_id = int(raw.thread_id())
        info = self._connection.info
        level = self._limits.isolation or "READ COMMITTED"
        if info.get("saga_isolation") != level:
            await self._connection.exec_driver_sql(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            info["saga_isolation"] = level
        seconds = math.ceil(self._seconds_left())
        idle = seconds if self._limits.idle_limit is None else min(seconds, math.ceil(self._limits.idle_limit))
        variables = self._session_variables(seconds, idle)
        if info.get("saga_limits") != variables:
            await self._connection.exec_driver_sql(f"SET SESSION {variables}")
            info["saga_limits"] = variables
        await self._send("START TRANSACTION READ ONLY" if self._limits.read_only else self._start)

    async def _read_warnings(self) -> None:
        """A view or a trigger may write a table without transactions, which no look at the statement shows."""
        if self.sql.used:
            warnings = (await self._connection.exec_driver_sql("SHOW WARNINGS")).mappings()
            self.kept_changes = any(int(warning["Code"]) == _NOT_ROLLED_BACK for warning in warnings)

    async def _clean(self) -> None:
        if self.sql.has_variables:
            await self._connection.invalidate()
        elif self.sql.used:
            await self._connection.exec_driver_sql(CLEAN_MYSQL)

    def _session_variables(self, seconds: int, idle: int) -> str:
        waiting = f"innodb_lock_wait_timeout = {max(1, int(seconds * self._lock_share))}"
        if getattr(self._connection.dialect, "is_mariadb", False):
            return f"{waiting}, max_statement_time = {seconds}, idle_transaction_timeout = {idle}"
        # MySQL cannot tell an idle transaction from an idle connection; the pool replaces closed connections.
        return f"{waiting}, max_execution_time = {seconds * 1000}, wait_timeout = {idle}"

    async def _abandon(self) -> None:
        """Kill the connection on the server as well: otherwise its statement and its locks would remain."""
        await super()._abandon()
        if self._thread_id is None:
            return
        killer = create_async_engine(
            self._connection.engine.url, poolclass=NullPool, connect_args={"connect_timeout": 2}
        )
        with suppress(SQLAlchemyError, OSError, TimeoutError):  # unreachable: the session's limits end the statement
            async with asyncio.timeout(5), killer.connect() as connection:
                await connection.exec_driver_sql(f"KILL {self._thread_id}")
