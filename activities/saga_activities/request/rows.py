"""``saga_request``: one row for each command, with who waits for its reply, and later with the reply.

The row is what both sides meet at. An attempt locks it before it looks for the reply and leaves its name there in the
same transaction; a reply is written by one statement on the same row. So either the attempt finds the reply, or
whoever has written the reply finds the attempt.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.sql_handle import Sql
from saga_activities.guard.tables_messaging import request
from saga_activities.request.reply import FAILED, REJECTED, Reply

SEALED = "sealed"
"""The outcome of a command that was never written and never will be."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """The attempt that waits. ``token`` is Temporal's task token; ``attempt`` counts from 1 within its call,
    ``earlier`` is how many attempts were made before that call."""

    token: bytes
    attempt: int
    earlier: int = 0

    def to_text(self) -> str:
        return json.dumps({"token": b64encode(self.token).decode(), "attempt": self.attempt, "earlier": self.earlier})

    @staticmethod
    def from_text(text: str) -> Waiter:
        data = json.loads(text)
        return Waiter(b64decode(data["token"]), data["attempt"], data["earlier"])


@dataclass(frozen=True, slots=True)
class Request:
    """A row as it was found. ``outcome`` None: no reply yet."""

    outcome: str | None
    data: str | None
    waiter: Waiter | None

    @property
    def fresh(self) -> bool:
        """This transaction has inserted it to write the command: who did so before has also left its name."""
        return self.outcome is None and self.waiter is None

    @property
    def refused(self) -> bool:
        return self.outcome in (REJECTED, FAILED)


async def lock(sql: Sql, row: dict[str, Any]) -> Request:
    """The row of ``row["step_key"]``, inserted if it was not there, and locked until the transaction ends."""
    await sql.execute(_insert(sql.dialect), {"outcome": None, **row})
    return _read(await sql.one(_row(row["step_key"]).with_for_update()))


async def wait(sql: Sql, key: str, waiter: Waiter) -> None:
    """The attempt that is told the reply from now on; a reply that was there is forgotten."""
    values = {"outcome": None, "data": None, "answered_at": None, "token": waiter.to_text()}
    await sql.execute(sa.update(request).where(request.c.step_key == key).values(**values))


async def record(engine: AsyncEngine, reply: Reply, now: float) -> tuple[bool, Request | None]:
    """Write a reply: whether it was the first, and the row; None: nobody has asked (or it is long forgotten).

    Who waits is read after the reply was written, so an attempt that comes in between finds the reply itself.
    """
    values = {"outcome": reply.outcome, "data": reply.data, "answered_at": now}
    here = request.c.step_key == reply.key
    async with engine.connect() as connection:
        written = await connection.execute(sa.update(request).where(here, request.c.outcome.is_(None)).values(**values))
        found = (await connection.execute(_row(reply.key))).first()
    if found is None:
        return False, None
    return written.rowcount == 1, _read(found)


def _row(key: str) -> sa.Select[Any, Any, Any]:
    return sa.select(request.c.outcome, request.c.data, request.c.token).where(request.c.step_key == key)


def _read(row: Any) -> Request:
    return Request(row.outcome, row.data, None if row.token is None else Waiter.from_text(row.token))


def _insert(dialect: str) -> str:
    """Waits for an open transaction that has inserted the same key; leaves a row that is there as it is.

    On MySQL it locks that row, too: IGNORE would only share it, and who shares it and then wants it alone is in a
    deadlock with a reply that wants the same.
    """
    mysql = dialect in ("mysql", "mariadb")
    return f"""
    INSERT INTO saga_request (step_key, saga_id, step, generation, op, outcome, created_at)
    VALUES (:step_key, :saga_id, :step, :generation, :op, :outcome, :created_at)
    ON {"DUPLICATE KEY UPDATE step_key = saga_request.step_key" if mysql else "CONFLICT DO NOTHING"}
    """
