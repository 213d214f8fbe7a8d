"""Steps with `compensate: auto` in a guard's database, on tables whose names are written as `@name`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from saga_activities.automatic import row_locks
from saga_activities.bodies.sql_action import restore_body, sql_body
from saga_activities.guard.entry_key import EntryKey
from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from tests.integration.guard.conftest import GuardDatabase, clock, new_attempt


class Tables:
    """Tables of one test in a guard's database."""

    def __init__(self, database: GuardDatabase) -> None:
        self.database = database
        self.kind = database.kind
        self.id = uuid4().hex[:8]
        self.names: list[str] = []

    def named(self, statement: str) -> str:
        return re.sub(r"@(\w+)", rf"\1_{self.id}", statement)

    async def sql(self, *statements: str) -> list[Any]:
        """Run statements outside of every saga; the rows of the last one."""
        rows: list[Any] = []
        for statement in statements:
            if created := re.match(r"\s*create table @(\w+)", statement):
                self.names.append(created.group(1))
            rows = await self.database.rows(self.named(statement).replace(":", r"\:"))
        return rows

    async def dump(self) -> dict[str, list[str]]:
        """All rows of all tables, as texts."""
        return {name: sorted(map(repr, await self.sql(f"select * from @{name}"))) for name in self.names}

    async def do(
        self,
        run: Sequence[str | Mapping[str, Any]],
        step: str = "change",
        saga: str = "saga",
        undo_scope: str = "",
        *,
        images: bool = True,
    ) -> Outcome:
        statements = [{"sql": statement} if isinstance(statement, str) else statement for statement in run]
        arguments = {
            "connection": "shop",
            "run": [{**statement, "sql": self.named(statement["sql"])} for statement in statements],
        }
        entry = self.entry(step, saga)
        guard = GuardSpec("shop", images=images, undo_scope=undo_scope)
        invocation = Invocation("sql", arguments, str(entry), entry.saga_id, step, "do", 1, guard=guard)
        return await self.database.guard.do(entry, "h", sql_body(arguments, invocation, new_attempt()), **clock())

    async def undo(self, step: str = "change", saga: str = "saga") -> Outcome:
        entry = self.entry(step, saga)
        invocation = Invocation("sql.restore", {}, str(entry), entry.saga_id, step, "undo", 1, guard=GuardSpec("shop"))
        body = restore_body({}, invocation, new_attempt())
        return await self.database.guard.undo(entry, body, known_done=True, **clock())

    def entry(self, step: str = "change", saga: str = "saga") -> EntryKey:
        root, slash, nested = saga.partition("/")
        return EntryKey(f"{root}-{self.id}{slash}{nested}", step)

    async def drop(self) -> None:
        await row_locks.release(self.database.engine, f"saga-{self.id}")
        if self.kind == "postgres":
            for name in self.names:
                await self.sql(f"drop table @{name} cascade")
            return
        async with self.database.engine.connect() as connection:  # tables may refer to each other
            switch = "set foreign_key_checks = {}" if self.kind == "mariadb" else "pragma foreign_keys = {}"
            await connection.exec_driver_sql(switch.format(0))
            for name in self.names:
                await connection.exec_driver_sql(self.named(f"drop table @{name}"))
            await connection.exec_driver_sql(switch.format(1))
