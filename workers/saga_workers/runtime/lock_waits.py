"""Waits of commands for locks: ended after a time, and reported with who holds the lock while tables are changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.concurrency import end_tasks
from saga_activities.guard.database_errors import is_lock_timeout
from sagas.errors import SagaError

_TIMEOUT = 10
"""Seconds that a statement waits for a lock."""

_REPORT_EVERY = 2.0
"""Seconds."""

# A role does not see when a transaction of another role began.
_POSTGRESQL_BLOCKERS = text("""
SELECT pg_catalog.format('process %s (user %s, %s)%s%s', b.pid, a.usename,
    coalesce(nullif(a.application_name, ''), 'no application name'),
    CASE WHEN a.xact_start IS NOT NULL
      THEN pg_catalog.format(', whose transaction is %s s old',
        extract(epoch FROM clock_timestamp() - a.xact_start)::bigint) END,
    CASE WHEN EXISTS (SELECT FROM pg_locks w JOIN pg_locks h ON h.classid = w.classid AND h.objid = w.objid
        AND h.objsubid = w.objsubid AND h.database = w.database
        WHERE w.pid = own.pid AND NOT w.granted AND w.locktype = 'advisory' AND h.pid = b.pid AND h.granted
        AND h.locktype = 'advisory')
      THEN ' by an advisory lock, which every role that may connect can take' END)
FROM pg_catalog.unnest(CAST(:pids AS int[])) AS own(pid), pg_catalog.unnest(pg_catalog.pg_blocking_pids(own.pid)) AS
  b(pid)
JOIN pg_stat_activity a ON a.pid = b.pid
UNION
SELECT pg_catalog.format('the prepared transaction %L of user %s, %s s old', p.gid, p.owner,
              extract(epoch FROM clock_timestamp() - p.prepared)::bigint)
FROM pg_locks w
JOIN pg_locks h ON h.granted AND h.pid IS NULL AND h.locktype = w.locktype
  AND h.database IS NOT DISTINCT FROM w.database AND h.relation IS NOT DISTINCT FROM w.relation
  AND h.transactionid IS NOT DISTINCT FROM w.transactionid
JOIN pg_locks x ON x.virtualtransaction = h.virtualtransaction AND x.pid IS NULL AND x.locktype = 'transactionid'
JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
WHERE w.pid = ANY(CAST(:pids AS int[])) AND NOT w.granted
ORDER BY 1
""")

_HELP = {
    "postgresql": "end that transaction (`saga reconcile` shows a prepared one of a saga) or session "
    "(select pg_terminate_backend(PROCESS)), then run this again",
    "mysql": "find the session that holds the lock (show processlist; xa recover), end it, then run this again",
    "sqlite": "end the program that is writing to the file, then run this again",
}


def limit_lock_waits(engine: AsyncEngine) -> None:
    """Let a statement of any session of the engine fail that is not granted a lock in time, as a migration holds it.

    See :func:`has_waited_too_long`.
    """
    statement = _limit(_family(engine))

    def limit(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(statement)
        cursor.close()
        connection.commit()

    event.listen(engine.sync_engine, "connect", limit)


class LockWatch:
    """Reports whom the sessions of an engine wait for, which :func:`limit_lock_waits` limits.

    ``statement`` is the place of what is executed. Only PostgreSQL tells every user who holds a lock.
    """

    def __init__(self, engine: AsyncEngine, name: str, report: Callable[[str], None] | None) -> None:
        self.statement = "the tables of the engine"
        self._engine = engine
        self._name = name
        self._report = report or (lambda _: None)
        self._pids: list[int] = []
        self._blockers = ""
        if engine.dialect.name == "postgresql":
            event.listen(engine.sync_engine, "connect", self._opened)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Report waits meanwhile."""
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            await end_tasks([watching])

    def timeout(self) -> SagaError:
        """The error for a lock that was not granted in time."""
        holder = f"; it is held by {self._blockers}" if self._blockers else ""
        return SagaError(
            f"{self._name}: {self.statement} has waited {_TIMEOUT} s for a lock{holder}",
            help=_HELP[_family(self._engine)],
        )

    def _opened(self, connection: Any, _record: Any) -> None:
        self._pids.append(connection.driver_connection.info.backend_pid)

    async def _watch(self) -> None:
        place, waited = self.statement, 0.0
        while True:
            await asyncio.sleep(_REPORT_EVERY)
            if place == self.statement:
                waited += _REPORT_EVERY
            else:
                place, waited, self._blockers = self.statement, 0.0, ""
            if self._engine.dialect.name == "postgresql":
                blockers = ""
                with contextlib.suppress(SQLAlchemyError, OSError):  # the set-up itself says why nothing answers
                    blockers = await self._read_blockers()
                if blockers:
                    self._blockers = blockers  # kept when the server has just ended the wait
                    self._report(f"{self._name}: {place} waits for a lock, held by {blockers}")
                    continue
            if waited:
                self._report(f"{self._name}: running {place} for more than {waited:g} s")

    async def _read_blockers(self) -> str:
        async with self._engine.connect() as connection:
            rows = await connection.execute(_POSTGRESQL_BLOCKERS, {"pids": self._pids})
            return ", ".join(rows.scalars())


def _limit(family: str) -> str:
    match family:
        case "postgresql":
            return f"SET lock_timeout = '{_TIMEOUT}s'"
        case "mysql":
            return f"SET SESSION lock_wait_timeout = {_TIMEOUT}, innodb_lock_wait_timeout = {_TIMEOUT}"
        case _:
            return f"PRAGMA busy_timeout = {_TIMEOUT * 1000}"


def has_waited_too_long(error: BaseException) -> bool:
    """Return whether a lock was not granted in time. SQLite has one error for a lock and for a conflict."""
    original = error.orig if isinstance(error, DBAPIError) else error
    return is_lock_timeout(error) or getattr(original, "sqlite_errorname", None) == "SQLITE_BUSY"


def _family(engine: AsyncEngine) -> str:
    return "mysql" if engine.dialect.name == "mariadb" else engine.dialect.name
