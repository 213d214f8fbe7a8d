"""Two-phase commit on real PostgreSQL and MariaDB servers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.sql_session import SqlSession
from saga_activities.guard.two_phase import TwoPhaseGuard, rules
from saga_activities.guard.two_phase.transaction_id import TransactionId
from sagas.errors import Rejected
from tests.integration.guard.conftest import GuardDatabase, clock, database_url, open_guard_database

STOCK = "create table if not exists prepared_stock (sku varchar(60) primary key, left_over int) "


@dataclass
class TwoPhaseDatabase:
    """A database with one product of its own for each test: 10 units, of which the step takes one."""

    database: GuardDatabase
    at: EntryKey
    sku: str

    @property
    def guard(self) -> TwoPhaseGuard:
        return self.database.connections.two_phase_guard("shop")

    async def take(self, sql: SqlSession) -> Any:
        """The action: takes one unit, and returns a value that differs in every run."""
        await sql.execute("update prepared_stock set left_over = left_over - 1 where sku = :sku", sku=self.sku)
        return {"taken": str(uuid4())}

    async def refuse(self, sql: SqlSession) -> Any:
        await self.take(sql)
        raise Rejected("sold out")

    async def do(self, body: Any = None, seconds: float = 10.0, at: EntryKey | None = None) -> Any:
        return await self.guard.do(at or self.at, "hash", body or self.take, **clock(seconds))

    async def stock(self) -> int:
        return (await self.database.rows("select left_over from prepared_stock where sku = :sku", sku=self.sku))[0][0]

    async def reasons(self) -> dict[str, str]:
        """The reason of each row of the guard, except those of the runs."""
        rows = await self.database.rows(
            "select op, reason from saga_guard where saga_id = :s and step = :t and generation = :g",
            s=self.at.saga_id, t=self.at.entry, g=self.at.generation,
        )  # fmt: skip
        return {op: reason for op, reason in rows if not op.startswith("run.")}

    async def transaction_id(self) -> TransactionId | None:
        """The id of the step's transaction, whose random part is in the guard."""
        rows = await self.database.rows(
            "select result from saga_guard where saga_id = :s and step = :t and generation = :g and op = 'do'",
            s=self.at.saga_id, t=self.at.entry, g=self.at.generation,
        )  # fmt: skip
        return rules.transaction_id(self.at, rows[0][0]) if rows else None

    async def is_prepared(self) -> bool:
        id = await self.transaction_id()
        return id is not None and await self.guard.participant.is_prepared(id, time.time() + 10)

    async def end_prepared(self, *, commit: bool) -> bool:
        id = await self.transaction_id()
        return id is not None and await self.guard.participant.end_prepared(id, time.time() + 10, commit=commit)


async def open_two_phase(database: GuardDatabase) -> TwoPhaseDatabase:
    sku, at = uuid4().hex, EntryKey(f"saga-{uuid4()}", "take")
    engine = " engine=InnoDB" if database.engine.dialect.name == "mariadb" else ""
    await database.rows(STOCK + engine)
    await database.rows("insert into prepared_stock values (:sku, 10)", sku=sku)
    return TwoPhaseDatabase(database, at, sku)


@pytest_asyncio.fixture(params=["postgres", "mariadb"])
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TwoPhaseDatabase]:
    """PostgreSQL and MariaDB. What a test leaves prepared is rolled back."""
    opened = await open_guard_database(request.param, database_url(request.param, request, tmp_path))
    shop = await open_two_phase(opened)
    yield shop
    await shop.end_prepared(commit=False)
    await opened.connections.close()
