"""The guard's transaction on PostgreSQL.

The connections are in autocommit mode and this file sends BEGIN and COMMIT itself, so that one round trip carries
BEGIN, the time limits, the watermark check and the first insert, and another one the result and COMMIT.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Self, TypeVar, cast

import psycopg
from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult
from sqlalchemy import Connection as SyncConnection
from sqlalchemy import Executable, text
from sqlalchemy.dialects.postgresql.psycopg import PGDialectAsync_psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection as Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.elements import TextClause

from saga_activities.guard.database_errors import STATEMENT_NOTE, classify_database_error, message_of
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.postgresql_script import Value, rows_of, run_script
from saga_activities.guard.sql_session import Row, SqlSession, StatementResult
from saga_activities.guard.sqlstates import TRANSACTION_TIMEOUT
from saga_activities.guard.stored_values import stored_values
from saga_activities.guard.transaction import (
    HELD_EVENT_STATUS,
    LONGER_TIMEOUT,
    BelowWatermark,
    GuardRow,
    LostCommit,
    NotCommitted,
    RowLockTimeout,
    RowReason,
    RowWrite,
    TransactionLimits,
)
from saga_activities.result_columns import check_names, unreadable_column
from saga_activities.session_settings import (
    CLEAN_POSTGRESQL,
    OWN_SEARCH_PATH,
    durable_commit,
    session_arguments,
    with_foreign_keys,
    without_foreign_keys,
)
from saga_activities.value_places import origin_place, result_place
from sagas.sql_text.parsed import ParsedSql

T = TypeVar("T")

_COLUMNS = "saga_id, step, generation, op, reason, args_hash, result, origin, created_at"
_INSERT_FIRST_ROW = (
    f"INSERT INTO saga_guard ({_COLUMNS}) SELECT %s, %s, %s, %s, %s, %s, %s, %s, %s"
    " WHERE NOT EXISTS (SELECT 1 FROM saga_watermark WHERE watermark > %s::float8) ON CONFLICT DO NOTHING RETURNING 1"
)
_NEXT = (
    f"INSERT INTO saga_guard ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
    " ON CONFLICT DO NOTHING RETURNING 1"
)
_UPDATE_RESULT = "UPDATE saga_guard SET result = %s WHERE saga_id = %s AND step = %s AND generation = %s AND op = %s"
_SELECT_ROWS = (
    "SELECT op, reason, args_hash, result, origin FROM saga_guard WHERE saga_id = %s AND step = %s AND generation = %s"
)
_DO_ROW = "saga_id = %s AND step = %s AND generation = %s AND op = 'do'"
_LOCK_DO = f"SELECT 1 FROM saga_guard WHERE {_DO_ROW} FOR UPDATE"
_REFUSE_DO = f"UPDATE saga_guard SET reason = 'undo' WHERE {_DO_ROW}"
_DELETE_ROW = "DELETE FROM saga_guard WHERE saga_id = %s AND step = %s AND generation = %s AND op = %s"
_UPDATE_HELD_EVENTS = (
    "UPDATE saga_outbox_row SET status = %s WHERE saga_id = %s AND step = %s AND generation = %s AND status = 'HELD'"
)
_SELECT_BELOW_WATERMARK = "SELECT 1 FROM saga_watermark WHERE watermark > %s::float8"

_TERMINATE = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE pid = :pid AND state = 'active' AND query_start < now() - interval '2 seconds'"
)
"""Ends a statement only if it has run for some time: the process id may belong to a newer connection."""

TRANSACTION_TIMEOUT_VERSION = 170000


class PostgresTransaction:
    """One transaction on one connection."""

    kept_changes = False
    _final_statement = "COMMIT"
    _lock_share = 0.9
    """The fraction of the time left that one wait for a lock may take."""

    def __init__(
        self,
        connection: Connection,
        raw: AsyncConnection[Any],
        entry_key: EntryKey,
        limits: TransactionLimits,
    ) -> None:
        self.sql = PostgresSqlSession(connection, raw)
        self._connection = connection
        self._raw = raw
        self._backend_pid = raw.info.backend_pid
        self._entry_key = entry_key
        self._stored_values = stored_values(connection.engine)
        self._limits = limits
        self.answered = False
        self._interrupted = False

    @property
    def unanswered(self) -> bool:
        return self._interrupted or self.sql.unanswered

    @classmethod
    async def start(cls, connection: Connection, entry_key: EntryKey, limits: TransactionLimits) -> Self:
        # The connection is open, so nothing blocks here; the asynchronous accessor would switch greenlets.
        pooled = cast("SyncConnection", connection.sync_connection).connection
        raw = cast("AsyncConnection[Any]", pooled.driver_connection)
        return cls(connection, raw, entry_key, limits)

    async def insert(
        self,
        op: str,
        reason: RowReason,
        *,
        args_hash: str | None = None,
        result: str | None = None,
        origin: str | None = None,
    ) -> bool:
        stored = self._stored_values.encrypt_result(result_place(*self._key_values(), op), result)
        start = self._stored_values.encrypt_origin(origin_place(*self._key_values()), origin)
        row = (*self._key_values(), op, reason, args_hash, stored, start, self._limits.scheduled_at)
        if not self.answered:
            return (await self._send(_INSERT_FIRST_ROW, (*row, self._limits.scheduled_at)))[-1].ntuples > 0
        return (await self._send(_NEXT, row))[-1].ntuples > 0

    async def check_watermark(self) -> None:
        if (await self._send(_SELECT_BELOW_WATERMARK, (self._limits.scheduled_at,)))[-1].ntuples:
            raise BelowWatermark()

    async def rows(self, *, locked: bool = True) -> Mapping[str, GuardRow]:
        await self.check_watermark()
        rows = rows_of((await self._send(_SELECT_ROWS + (" FOR SHARE" if locked else ""), self._key_values()))[-1])
        decrypt = self._stored_values.decrypt_result
        return {
            op: GuardRow(reason, args_hash, decrypt(result_place(*self._key_values(), op), result), origin)
            for op, reason, args_hash, result, origin in rows
        }

    async def lock_do(self) -> None:
        try:
            await self._send(_LOCK_DO, self._key_values())
        except psycopg.errors.LockNotAvailable as error:
            raise RowLockTimeout(message_of(error)) from error

    async def refuse_do(self) -> None:
        await self._send(_REFUSE_DO, self._key_values())

    async def delete(self, op: str) -> None:
        await self._send(_DELETE_ROW, (*self._key_values(), op))

    async def commit(self, row_write: RowWrite | None) -> None:
        text, values = self._final_statement, ()
        if row_write is not None and row_write.result is not None:
            key = (*self._key_values(), row_write.op)
            values = (self._stored_values.encrypt_result(result_place(*key), row_write.result), *key)
            text = f"{_UPDATE_RESULT}; {text}"
        if row_write is not None and row_write.held is not None:
            text, values = (
                f"{_UPDATE_HELD_EVENTS}; {text}",
                (HELD_EVENT_STATUS[row_write.held], *self._key_values(), *values),
            )
        if values:
            text = self._with_own_search_path(text)
        if self.sql.used:  # in the same round trip; a statement of an action may have called set_config
            text = f"SELECT {durable_commit(local=True)}; {text}; {CLEAN_POSTGRESQL}"
        try:
            results = await self._send(text, values)
        except psycopg.Error as error:
            classified = classify_database_error(error)
            if self._raw.closed or (classified is not None and classified.connection_lost):
                help = f"; {LONGER_TIMEOUT}" if error.sqlstate == TRANSACTION_TIMEOUT else ""
                raise LostCommit(f"{message_of(error)}{help}") from error
            error.add_note(f"{STATEMENT_NOTE}{self._final_statement}")
            raise
        if any(result.command_status == b"ROLLBACK" for result in results):
            # COMMIT of a failed transaction reports it, without an error.
            await self.roll_back_by_driver("ROLLBACK")
            raise NotCommitted("the transaction was broken before COMMIT, and was rolled back")

    async def roll_back_by_driver(self, statement: str) -> None:
        """Let the driver see a rollback: it forgets the statements that it has prepared, which an error may have kept
        from the server.
        """
        await self._answer(self._raw.execute(cast("Any", statement)))

    def _with_own_search_path(self, text: str) -> str:
        """Statements of the engine, in which names mean its own tables, whatever an action has set before."""
        return f"{OWN_SEARCH_PATH}; {text}" if self.sql.used else text

    async def rollback(self) -> None:
        await self.sql.close()
        try:
            if not self._raw.closed and self._raw.info.transaction_status != TransactionStatus.IDLE:
                await self._raw.rollback()
            if not self._raw.closed and self.sql.used:
                await run_script(self._raw, CLEAN_POSTGRESQL, ())
            if self.sql.refusal is not None:
                await self._raw.close()  # only a new session has another setting
        except psycopg.Error:
            await self._raw.close()  # the server rolls back the transaction of a closed connection
        if self._raw.closed and isinstance(self.sql.first_error, asyncio.CancelledError):
            await self._terminate_backend()
        if self._raw.closed and not self._connection.invalidated:
            with suppress(DBAPIError):  # SQLAlchemy then invalidates every older connection of the pool
                await self._connection.exec_driver_sql("SELECT 1")
        await self._connection.close()

    async def release(self) -> None:
        await self.sql.close()
        await self._connection.close()

    async def _terminate_backend(self) -> None:
        """End a statement that was not cancelled in time: the request to cancel it may have come before the statement.

        The driver has closed the connection by then, but the server would notice only at the end of the statement.
        """
        url = self._connection.engine.url
        killer = create_async_engine(
            url, poolclass=NullPool, connect_args={"connect_timeout": 2, **session_arguments(url)}
        )
        with suppress(DBAPIError, OSError, TimeoutError):  # unreachable: the limits of the transaction end it
            async with asyncio.timeout(5), killer.connect() as connection:
                await connection.execute(_TERMINATE, {"pid": self._backend_pid})

    def _key_values(self) -> tuple[str, str, int]:
        return self._entry_key.saga_id, self._entry_key.entry, self._entry_key.generation

    async def _send(self, text: str, values: tuple[Value, ...]) -> Sequence[PGresult]:
        """Run ``text``; the first call opens the transaction in the same round trip."""
        opens = not self.answered
        if opens:
            text = self._begin_statements() + text
        results = await self._answer(run_script(self._raw, text, values))
        self.answered = True
        if opens and not self._limits.read_only and results[1].get_value(0, 0) == b"replica":
            # Not the rows of the guard: the statements of the action, which the database would not check.
            self.sql.refusal = without_foreign_keys(self._raw.info.user, self._raw.info.dbname)
        return results

    async def _answer(self, sending: Awaitable[T]) -> T:
        self._interrupted = True  # until a result or an error arrives
        try:
            answer = await sending
        except psycopg.Error:
            self._interrupted = False
            raise
        self._interrupted = False
        return answer

    def _begin_statements(self) -> str:
        """BEGIN and the limits that end the transaction of a worker that froze or vanished.

        ``lock_timeout`` is the shortest, so that a wait for a lock is distinguished from a slow statement.
        """
        remaining = max(50, int((self._limits.deadline - time.time()) * 1000))
        limits = {
            "lock_timeout": max(25, int(remaining * self._lock_share)),
            "statement_timeout": remaining,
            "idle_in_transaction_session_timeout": remaining
            if self._limits.idle_limit is None
            else min(remaining, int(self._limits.idle_limit * 1000)),
        }
        version = self._raw.info.server_version
        if version >= TRANSACTION_TIMEOUT_VERSION:
            limits["transaction_timeout"] = remaining + 1000  # the errors of the other limits are more specific
        level = f" ISOLATION LEVEL {self._limits.isolation}" if self._limits.isolation else ""
        settings = [f"pg_catalog.set_config('{name}', '{limit}', true)" for name, limit in limits.items()]
        if self._limits.read_only:
            return f"BEGIN{level} READ ONLY; SELECT {', '.join(settings)}; "
        checked = with_foreign_keys(version, local=True)  # first: its result is read
        return f"BEGIN{level}; {checked}, {', '.join([durable_commit(local=True), *settings])}; "


# ``step.sql`` on PostgreSQL: textual SQL goes directly to psycopg, because SQLAlchemy would build an execution context
# and switch greenlets for every statement. Parameters and errors are the same either way.
_DIALECT = PGDialectAsync_psycopg()


class PostgresSqlSession(SqlSession):
    """Runs textual SQL itself; lists of parameters and SQLAlchemy constructs go through SQLAlchemy."""

    def __init__(self, connection: Connection, raw: AsyncConnection[Any]) -> None:
        super().__init__(connection)
        self._raw = raw

    async def use_own_search_path(self) -> None:
        if self.used:
            await self.control(OWN_SEARCH_PATH)

    async def _send(
        self, statement: ParsedSql | Executable, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> StatementResult:
        if not isinstance(statement, ParsedSql) or not isinstance(parameters, Mapping):
            return await super()._send(statement, parameters)
        query = statement.render("pyformat").text
        try:
            return await read_result(await self._raw.execute(cast("Any", query), parameters))
        except psycopg.Error as error:
            raise driver_error(query, parameters, error, is_closed=self._raw.closed) from error


def driver_error(query: str, parameters: Mapping[str, Any], error: psycopg.Error, *, is_closed: bool) -> Exception:
    """The error of SQLAlchemy for one of psycopg."""
    return DBAPIError.instance(
        query, dict(parameters), error, psycopg.Error, connection_invalidated=is_closed, dialect=_DIALECT
    )


async def read_result(cursor: Any) -> StatementResult:
    """Return what a psycopg cursor has now. Raises UnusableColumn."""
    if cursor.description is None:
        return StatementResult(None, cursor.rowcount)
    columns = [column.name for column in cursor.description]
    check_names(columns)
    try:
        values = await cursor.fetchall()
    except psycopg.DataError as error:  # the driver's own: the server has sent the rows already
        raise unreadable_column(cursor, error) or error from error
    rows = [Row(dict(zip(columns, row, strict=True))) for row in values]
    return StatementResult(rows, len(rows))


@lru_cache(maxsize=2048)
def compile_clause(clause: TextClause) -> tuple[str, frozenset[str]]:
    """The statement in psycopg's parameter style, and the names of its parameters."""
    compiled = clause.compile(dialect=_DIALECT)
    return compiled.string, frozenset(compiled.params)
