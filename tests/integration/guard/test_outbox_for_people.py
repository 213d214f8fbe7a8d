"""`saga_outbox` as people and their own SQL use it: the same words and statements on every database."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.integration.guard.conftest import GuardDatabase

INSERT = (
    "insert into saga_outbox (event_id, topic, event_key, value, headers, saga_id, step, generation, status, "
    "created_at) values (:event, 'by-hand', 'k', '{}', '{}', :saga, 'step', 1, :status, 1)"
)


class Event:
    """A row that a person has inserted."""

    def __init__(self, database: GuardDatabase) -> None:
        self.database = database
        self.id, self.saga = str(uuid.uuid4()), f"by-hand-{uuid.uuid4()}"

    async def insert(self, status: str) -> None:
        await self.database.rows(INSERT, event=self.id, saga=self.saga, status=status)

    async def change(self, change: str, where: str = "1 = 1") -> None:
        await self.database.rows(f"update saga_outbox set {change} where event_id = :event and {where}", event=self.id)

    async def row(self) -> tuple[Any, ...]:
        rows = await self.database.rows(
            "select status, shard, checks, created_at, published_at, note from saga_outbox where event_id = :event",
            event=self.id,
        )
        return tuple(rows[0]) if rows else ()


@pytest.fixture
async def event(guard_database: GuardDatabase) -> Event:
    return Event(guard_database)


async def test_a_row_is_inserted_changed_and_deleted(event: Event) -> None:
    await event.insert("HELD")
    assert await event.row() == ("HELD", 0, 0, 1, None, None)
    await event.change("status = 'REFUSED', note = 'by hand'")
    assert await event.row() == ("REFUSED", 0, 0, 1, None, "by hand")
    await event.change("created_at = 2, shard = 1")
    assert await event.row() == ("REFUSED", 1, 0, 2, None, "by hand")
    await event.change("status = 'DROPPED', published_at = 3", "status = 'REFUSED'")
    assert await event.row() == ("DROPPED", 1, 0, 2, 3, "by hand")
    await event.change("status = 'NEW'", "status = 'HELD'")
    assert (await event.row())[0] == "DROPPED"
    await event.database.rows("delete from saga_outbox where event_id = :event", event=event.id)
    assert await event.row() == ()


async def test_a_released_row_is_new(event: Event) -> None:
    await event.insert("HELD")
    await event.change("status = 'NEW'")
    assert (await event.row())[0] == "NEW"
    await event.change("status = 'DROPPED'")
    await event.database.rows("delete from saga_outbox where event_id = :event", event=event.id)


async def test_a_row_that_is_set_aside_is_new_and_stays_so(event: Event) -> None:
    """The relay's own word on PostgreSQL is not meant for people, and a change of another column keeps it."""
    if event.database.engine.dialect.name != "postgresql":
        pytest.skip("only PostgreSQL sets events aside")
    await event.insert("NEW")
    own = "select status from saga_outbox_row where event_id = :event"
    await event.database.rows("update saga_outbox_row set status = 'SUSPENDED' where event_id = :event", event=event.id)
    await event.change("note = 'looked at'")
    assert (await event.row())[0] == "NEW"
    assert [tuple(row) for row in await event.database.rows(own, event=event.id)] == [("SUSPENDED",)]
    await event.database.rows("delete from saga_outbox where event_id = :event", event=event.id)
