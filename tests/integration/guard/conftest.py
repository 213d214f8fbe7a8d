"""Real databases for the guard: PostgreSQL, MariaDB and SQLite, each with the engine's tables and one of effects."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities import conflict_retries
from saga_activities.attempt_context import AttemptContext
from saga_activities.connections import ISOLATION_LEVELS, DatabaseConnections, open_engine
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.guard import Guard
from saga_activities.guard.rules import GuardedBody
from saga_activities.guard.schema import create_tables
from saga_activities.guard.sql_session import SqlSession
from saga_activities.messaging.outbox import insert_events
from sagas.actions.events import Event
from sagas.errors import Rejected
from sagas.protocol.messages import GuardSpec
from sagas.protocol.payloads import Invocation
from sagas.settings import SqlConnection
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.new_databases import new_database
from tests.unit.guard.model import State

if TYPE_CHECKING:
    from tests.integration.guard.automatic_steps import Tables


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conflict has its three transactions at once."""
    monkeypatch.setattr(conflict_retries, "CONFLICT_INTERVALS", (0.01, 0.02))


EFFECTS = """
create table effects (
    saga_id varchar(200), step varchar(200), generation int, kind varchar(30), at_time double precision
)
"""


@dataclass
class GuardDatabase:
    """One database with a guard, and a look at it from the outside."""

    connections: DatabaseConnections
    kind: str
    url: str
    names: list[str] = field(default_factory=list)

    @property
    def guard(self) -> Guard:
        return self.connections.guard("shop")

    @property
    def engine(self) -> AsyncEngine:
        return self.connections.engine("shop")

    def body(self, kind: str | None, address: EntryKey | None = None) -> GuardedBody:
        """An action that writes one row of effect; None: it writes one, and then refuses."""

        async def act(sql: SqlSession) -> Any:
            where = address or self.current
            await sql.execute(
                "insert into effects values (:saga_id, :step, :generation, :kind, :now)",
                {
                    "saga_id": where.saga_id,
                    "step": where.entry,
                    "generation": where.generation,
                    "kind": kind or "refused",
                    "now": time.time(),
                },
            )
            if kind in (None, "applied"):
                await insert_events(sql, [Event("charged", "k", {"n": 1}, hold=True)], _invocation(where))
            if kind is None:
                raise Rejected("no", why="the test says so")
            return {"effect": kind}

        return act

    current: EntryKey = field(default_factory=lambda: EntryKey("none", "none"))

    async def rows(self, statement: str, **values: Any) -> list[Any]:
        async with self.engine.connect() as connection:
            result = await connection.execute(text(statement), values)
            return list(result) if result.returns_rows else []

    async def state(self, address: EntryKey) -> State:
        """The rows and effects of an entry, in terms of the model."""
        where = "saga_id = :s and step = :t and generation = :g"
        key = {"s": address.saga_id, "t": address.entry, "g": address.generation}
        rows = await self.rows(f"select op, reason from saga_guard where {where}", **key)
        reasons = {row.op: row.reason for row in rows}
        kinds = [kind for (kind,) in await self.rows(f"select kind from effects where {where}", **key)]
        assert "refused" not in kinds, "a refused action left an effect"
        return State(
            do=reasons.get("do"),
            confirm=reasons.get("confirm"),
            undo=reasons.get("undo"),
            applied=kinds.count("applied"),
            confirmed=kinds.count("confirmed"),
            undone=kinds.count("undone"),
            undone_confirmed=kinds.count("undone_confirmed"),
            event=await self._event(where, key),
        )

    async def _event(self, where: str, key: dict[str, Any]) -> str | None:
        """Status of the event that each effect has emitted."""
        statuses = {status for (status,) in await self.rows(f"select status from saga_outbox where {where}", **key)}
        return " and ".join(sorted(statuses)) or None


def _invocation(address: EntryKey) -> Invocation:
    key = str(address)
    guard = GuardSpec("shop", holds=True)
    return Invocation("charge", {}, key, address.saga_id, address.entry, "do", address.generation, guard=guard)


def clock(seconds: float = 30.0) -> Any:
    """The times of an attempt that may take ``seconds``."""
    return {"scheduled_at": time.time(), "deadline": time.time() + seconds}


def new_attempt(seconds: float = 30.0) -> AttemptContext:
    """The context of an attempt that may take ``seconds``."""
    times = clock(seconds)
    return AttemptContext(1, times["scheduled_at"], times["deadline"], lambda *_: None, logging.getLogger(__name__))


def new_address(step: str = "charge") -> EntryKey:
    return EntryKey(f"saga-{uuid4()}", step)


async def open_guard_database(kind: str, url: str, **settings: Any) -> GuardDatabase:
    if kind == "mariadb":  # the tables of its default database have no transactions and no triggers
        administrator = open_engine("administrator", re.sub(r"/\w+$", "/mysql", url), 1)
        async with administrator.connect() as connection:
            await connection.exec_driver_sql("create database if not exists guard character set utf8mb4")
        await administrator.dispose()
    connections = DatabaseConnections([SqlConnection(name="shop", url_setting=url, **settings)], pool_size=10)
    guard_database = GuardDatabase(connections, kind, url)
    await create_tables(guard_database.engine)
    async with guard_database.engine.connect() as connection:
        await connection.exec_driver_sql(EFFECTS.replace("create table", "create table if not exists"))
    return guard_database


def database_url(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """A URL of the running server (or a new file) with a database of its own for SQLite."""
    if kind == "sqlite":
        return f"sqlite:///{folder / 'participant.db'}"
    server: DatabaseServer = request.getfixturevalue(f"{kind}_server")
    if kind == "postgres":
        return server.url()
    return server.url("guard")


@pytest_asyncio.fixture(params=["postgres", "mariadb", "sqlite"])
async def guard_database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[GuardDatabase]:
    """A guard database of each kind."""
    opened = await open_guard_database(request.param, database_url(request.param, request, tmp_path))
    yield opened
    await opened.connections.close()


LEVELS = [(kind, level) for kind in ("postgres", "mariadb") for level in ISOLATION_LEVELS]


@pytest_asyncio.fixture(params=LEVELS, ids=lambda param: "-".join(param))
async def levels(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[GuardDatabase]:
    """PostgreSQL and MariaDB at each isolation level."""
    kind, level = request.param
    opened = await open_guard_database(kind, database_url(kind, request, tmp_path), isolation=level)
    yield opened
    await opened.connections.close()


@pytest_asyncio.fixture(params=["postgres", "mariadb"])
async def server_guard_database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[GuardDatabase]:
    """The databases that are servers, at their guard's own isolation level."""
    opened = await open_guard_database(request.param, database_url(request.param, request, tmp_path))
    yield opened
    await opened.connections.close()


@pytest_asyncio.fixture
async def tables(guard_database: GuardDatabase) -> AsyncIterator[Tables]:
    """Tables of a test in a guard database of each kind."""
    from tests.integration.guard.automatic_steps import Tables

    tables = Tables(guard_database)
    yield tables
    await tables.drop()


@pytest_asyncio.fixture
async def postgres_tables(postgres_server: DatabaseServer) -> AsyncIterator[Tables]:
    """Tables of a test in a database of its own, whose settings and types it may change."""
    from tests.integration.guard.automatic_steps import Tables

    database = await open_guard_database("postgres", new_database(postgres_server))
    yield Tables(database)
    await database.connections.close()
