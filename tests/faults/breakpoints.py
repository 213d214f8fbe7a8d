"""Stops a real attempt at an exact point, from outside the process.

The test schema passes a breakpoint (a shared advisory lock) at two points of every effect: ``effect``, when the
effect is made and not committed (P2), and ``commit``, inside COMMIT (P2c: the worker has sent it and waits). With
Kafka there are two more: ``record``, when a relay records that the effect's event is published (P12), and ``note``,
inside the COMMIT of a consumer that has recorded it (P13). The harness sets a breakpoint by holding the lock;
PostgreSQL then shows who waits there, and that session's application_name carries the worker's process id.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, cast

import psycopg

from tests.helpers.waiting import LIMIT

Point = Literal["effect", "commit", "record", "note"]

"""Seconds to wait for something that must happen; a worker that was killed may delay it by Temporal's own 10 s."""

_WAITING = """
select a.application_name, a.pid from pg_locks l join pg_stat_activity a using (pid)
where l.locktype = 'advisory' and not l.granted
  and l.classid = 7 and l.objid::bigint = hashtext(%s)::bigint & 4294967295
  and l.database = (select oid from pg_database where datname = current_database())
"""


@dataclass(frozen=True)
class Target:
    """One operation of one step."""

    step: str
    op: str

    def __str__(self) -> str:
        return f"{self.op} {self.step}"


class Breakpoint:
    """A breakpoint that is set; leaving the context manager clears it."""

    def __init__(self, conninfo: str, point: Point, target: Target) -> None:
        self._conninfo = conninfo
        self._name = f"{point} {target.step} {target.op}"
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def __aenter__(self) -> Self:
        self._connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
        await self._connection.execute("select pg_advisory_lock(7, hashtext(%s))", (self._name,))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        await self.open()

    async def open(self) -> None:
        """Clear the breakpoint for all attempts."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def reached(self, *, by: int | None = None) -> int:
        """Wait until an attempt is stopped at the breakpoint; returns the PostgreSQL process that serves it.

        ``by`` is the process id of the worker it must come from.
        """
        assert self._connection is not None, "the breakpoint is not set"
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            cursor = await self._connection.execute(cast("Any", _WAITING), (self._name,))
            for application, backend in await cursor.fetchall():
                if by is None or application == f"saga-worker-{by}":
                    return backend
            await asyncio.sleep(0.02)
        raise AssertionError(f"no attempt came to {self._name} within {LIMIT:.0f} s")
