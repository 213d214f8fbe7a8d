"""A table with steps of `compensate: auto` on it, in the database of a guard, and their undos."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest_asyncio

from saga_activities.automatic import row_locks
from saga_activities.bodies.sql_action import restore_body, sql_body
from saga_activities.guard.entry_key import EntryKey
from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from tests.integration.guard.conftest import GuardDatabase, clock, new_attempt

COLUMNS = "sku varchar(20) not null primary key, free integer, price numeric(10, 2), note varchar(200)"


class Shop:
    """A guard's database with one table `stock` of this test, and steps with `compensate: auto` on it."""

    def __init__(self, database: GuardDatabase) -> None:
        self.database = database
        self.id = uuid4().hex[:12]
        self.table = f"stock_{self.id}"

    @property
    def kind(self) -> str:
        return self.database.kind

    async def sql(self, statement: str, **values: Any) -> list[Any]:
        return await self.database.rows(statement.replace("stock", self.table), **values)

    async def stock(self) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.sql("select * from stock order by sku")]

    async def do(self, run: Any, saga: str = "first", step: str = "take", **params: Any) -> Outcome:
        statements = [{"sql": statement, "params": params} for statement in ([run] if isinstance(run, str) else run)]
        written = [{**statement, "sql": statement["sql"].replace("stock", self.table)} for statement in statements]
        entry = self.entry(saga, step)
        arguments = {"connection": "shop", "run": written}
        invocation = Invocation(
            "sql", arguments, str(entry), entry.saga_id, step, "do", 1, guard=GuardSpec("shop", images=True)
        )
        return await self.database.guard.do(entry, "h", sql_body(arguments, invocation, new_attempt()), **clock())

    async def undo(self, saga: str = "first", step: str = "take") -> Outcome:
        entry = self.entry(saga, step)
        invocation = Invocation("sql.restore", {}, str(entry), entry.saga_id, step, "undo", 1, guard=GuardSpec("shop"))
        body = restore_body({}, invocation, new_attempt())
        return await self.database.guard.undo(entry, body, known_done=True, **clock())

    def entry(self, saga: str, step: str) -> EntryKey:
        return EntryKey(f"{saga}-{self.id}", step)

    async def release(self, saga: str) -> None:
        await row_locks.release(self.database.engine, f"{saga}-{self.id}")

    def upsert(self, sku: str = ":sku", free: str = ":free") -> str:
        clause = (
            "on duplicate key update free = free + values(free)"
            if self.kind == "mariadb"
            else "on conflict (sku) do update set free = stock.free + excluded.free"
        )
        return f"insert into stock (sku, free) values ({sku}, {free}) {clause}"


@pytest_asyncio.fixture
async def shop(guard_database: GuardDatabase) -> AsyncIterator[Shop]:
    shop = Shop(guard_database)
    await shop.sql(f"create table stock ({COLUMNS})")
    await shop.sql(r"insert into stock values ('a', 5, 1.50, 'it''s \: %'), ('b', 7, 2.5, null), ('c', 0, 3, '')")
    yield shop
    await shop.sql("drop table stock")
