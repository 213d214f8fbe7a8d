"""Statements whose errors end the transaction on the database itself, and functions that catch them and go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from saga_activities.connections import DatabaseConnections
from sagas.errors import Rejected
from sagas.settings import SqlConnection
from tests.integration.guard.conftest import GuardDatabase, open_guard_database

TRACE = sa.table("trace_row", sa.column("id"), sa.column("n"))
TABLES = (
    "create table trace_row (id varchar(200), n int)",
    "create table taken (id varchar(20) primary key)",
    "create table account (id int primary key, n int not null)",
    "create table heavy (n int)",
    "insert into taken values ('A')",
    "insert into account values (1, 0), (2, 0)",
)
SQLITE_TABLES = (
    "create table taken_for_all (id text primary key on conflict rollback)",
    "insert into taken_for_all values ('A')",
    "create table seat (n int)",
    "create trigger refuses_seat before insert on seat begin select raise(rollback, 'no'); end",
)
ENDS: dict[str, tuple[str, ...]] = {
    "sqlite": ("column", "statement", "trigger"),
    "mariadb": ("deadlock", "killed"),
    "postgresql": ("refused", "deadlock", "killed"),
}
"""The ways in which a statement may end the transaction; on PostgreSQL every error does."""

ALL_ENDS = [(kind, how) for kind, ends in ENDS.items() for how in ends]
_SQLITE = {
    "column": "insert into taken_for_all values ('A')",
    "statement": "insert or rollback into taken values ('A')",
    "trigger": "insert into seat values (1)",
}


@dataclass
class EndingShop:
    """A database with a guard. ``left``: how often an end still happens; the outsider's transactions are its own."""

    database: GuardDatabase
    outside: DatabaseConnections
    left: int = 1000
    errors: list[BaseException] = field(default_factory=list)

    async def close(self) -> None:
        await self.database.connections.close()
        await self.outside.close()

    async def end(self, sql: Any, how: str, call: Callable[[Any], Awaitable[Any]]) -> None:
        """Let a statement end the transaction of ``sql``. Raises its error. ``call`` awaits a call of ``sql``."""
        if self.left == 0:
            return
        self.left -= 1
        if self.database.kind == "sqlite":
            await call(sql.execute(_SQLITE[how]))
        elif how == "refused":
            await call(sql.execute("insert into taken values ('A')"))
        elif how == "killed":
            await self._kill(sql, call)
        else:
            await self._deadlock(sql, call)

    async def _kill(self, sql: Any, call: Callable[[Any], Awaitable[Any]]) -> None:
        is_postgresql = self.database.kind == "postgresql"
        number = await call(sql.scalar(f"select {'pg_backend_pid' if is_postgresql else 'connection_id'}()"))
        async with self.outside.engine("shop").connect() as outsider:
            await outsider.exec_driver_sql(
                f"select pg_terminate_backend({number}, 5000)" if is_postgresql else f"kill {number}"
            )
        await call(sql.execute("update account set n = n + 1 where id = 1"))

    async def _deadlock(self, sql: Any, call: Callable[[Any], Awaitable[Any]]) -> None:
        """The outsider has changed more rows, or waits for longer, so the database chooses the other transaction."""
        async with self.outside.engine("shop").connect() as outsider:
            await outsider.exec_driver_sql("begin")
            await _make_heavy(outsider, self.database.kind)
            await outsider.exec_driver_sql("update account set n = n + 1 where id = 2")
            await call(sql.execute("update account set n = n + 1 where id = 1"))
            waits = asyncio.create_task(outsider.exec_driver_sql("update account set n = n + 1 where id = 1"))
            try:
                await call(sql.execute("update account set n = n + 1 where id = 2"))
            finally:
                await asyncio.wait({waits})
                await outsider.exec_driver_sql("rollback")


async def _make_heavy(outsider: AsyncConnection, kind: str) -> None:
    if kind == "postgresql":  # there the first that looks for a deadlock is chosen
        await outsider.exec_driver_sql("set local deadlock_timeout = '1min'")
    else:
        await outsider.exec_driver_sql("insert into heavy select seq from seq_1_to_200")


async def open_ending_shop(kind: str, url: str) -> EndingShop:
    database = await open_guard_database(kind, url)
    async with database.engine.connect() as connection:
        for statement in (*TABLES, *(SQLITE_TABLES if kind == "sqlite" else ())):
            await connection.exec_driver_sql(statement)
    return EndingShop(database, DatabaseConnections([SqlConnection(name="shop", url_setting=url)], pool_size=2))


STEPS = ("write", "construct", "many", "read", "end", "end quietly")
LASTS = ("return", "reject", "raise", "refusal", "own error")


async def carry_out(shop: EndingShop, sql: Any, id: str, how: str, steps: Sequence[str], last: str) -> dict[str, Any]:
    """Run ``steps`` as an author may write them who catches every error, and end as ``last`` says."""

    async def call(awaitable: Awaitable[Any]) -> Any:
        return await awaitable

    caught: list[Exception] = []
    for number, step in enumerate(steps):
        try:
            if step == "write":
                await sql.execute("insert into trace_row values (:id, :n)", id=id, n=number)
            elif step == "construct":
                await sql.execute(TRACE.insert(), {"id": id, "n": number})
            elif step == "many":
                await sql.execute("insert into trace_row values (:id, :n)", [{"id": id, "n": n} for n in (7, 8)])
            elif step == "read":
                await sql.scalar("select count(*) from trace_row where id = :id", id=id)
            else:
                await shop.end(sql, how, call)
        except Exception as error:  # noqa: BLE001 - as the author does
            caught.append(error)
    shop.errors.extend(caught)
    if caught and last == "reject":
        raise Rejected("no") from caught[0]
    if caught and last == "raise":
        raise RuntimeError("the author's own") from caught[0]
    if caught and last in ("refusal", "own error"):
        raise caught[-1 if last == "refusal" else 0]
    return {"id": id}


def rows_of(steps: Collection[str]) -> int:
    """The number of rows that the steps write if nothing ends the transaction."""
    return sum({"write": 1, "construct": 1, "many": 2}.get(step, 0) for step in steps)


def new_id() -> str:
    return f"ended-{uuid4()}"
