"""The id of a ledger is that of its database, and workers read it without holding anything up."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_workers.ledger import ledger_mark
from saga_workers.ledger.ledger_mark import LedgerMark
from saga_workers.ledger.run_ledger import LedgerUnavailable, NoLedger, RunLedger
from tests.helpers.waiting import until


async def test_it_is_the_same_until_the_database_is_another_one(ledger: RunLedger, database: AsyncEngine) -> None:
    id = await ledger.identity()
    assert len(id) == 8
    assert await RunLedger("books", lambda: database).identity() == id
    async with database.begin() as connection:
        await connection.execute(text("update saga_outbox_home set home = 'another'"))
    assert await RunLedger("books", lambda: database).identity() != id


async def test_a_worker_begins_without_an_answer_and_has_it_later(
    ledger: RunLedger, database: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_mark, "_FIRST_WAIT", 0.2)
    hidden = "alter table saga_outbox_home rename to hidden_home"
    async with database.begin() as connection:
        await connection.execute(text(hidden))
    with pytest.raises(LedgerUnavailable):
        await ledger.identity()
    mark, began = LedgerMark(), time.monotonic()
    await mark.start(ledger)
    try:
        assert (mark.id, time.monotonic() - began < 5) == ("", True)
        async with database.begin() as connection:
            await connection.execute(text("alter table hidden_home rename to saga_outbox_home"))
        await until(lambda: mark.id)
        assert mark.id == await ledger.identity()
    finally:
        await mark.stop()


async def test_without_a_ledger_there_is_no_id() -> None:
    mark = LedgerMark()
    await mark.start(NoLedger())
    await mark.stop()
    assert (mark.id, await NoLedger().identity()) == ("", "")
