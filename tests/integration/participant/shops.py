"""A database of a participant, of any kind: the engine's tables and one table of effects."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from tests.helpers.new_databases import new_url

DATABASES = ("postgresql", "mariadb", "sqlite")

NUMBERED = {
    "postgresql": "bigserial primary key",
    "mariadb": "bigint auto_increment primary key",
    "sqlite": "integer primary key",
}


@dataclass(frozen=True)
class Shop:
    url: str
    engine: AsyncEngine

    async def rows(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        async with self.engine.connect() as connection:
            return [tuple(row) for row in await connection.execute(text(statement), values)]

    async def effects(self) -> list[tuple[str, int]]:
        """Effects of the participant, (what, number), in the order of their inserts."""
        return await self.rows("select what, number from effect order by id")

    async def outbox(self, topic: str) -> list[tuple[dict[str, str], Any]]:
        """Headers and value of the events for a topic, in order."""
        rows = await self.rows("select headers, value from saga_outbox where topic = :topic order by id", topic=topic)
        return [(json.loads(headers), json.loads(value)) for headers, value in rows]


@asynccontextmanager
async def open_shop(kind: str, request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Shop]:
    url = await new_url(kind, request, folder)
    engine = open_engine("shop", url, 1)
    try:
        await create_tables(engine)
        async with engine.connect() as connection:
            table = f"create table effect (id {NUMBERED[kind]}, what varchar(500), number int)"
            await connection.execute(text(table))
        yield Shop(url, engine)
    finally:
        await engine.dispose()
