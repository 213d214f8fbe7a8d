"""Purging: only below the watermark, only complete sagas, and older attempts are refused."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from saga_activities.guard import watermark
from saga_activities.guard.schema import create_tables, ddl
from saga_activities.guard.sqlite import SqliteTransaction
from tests.integration.guard.conftest import GuardDatabase, new_address, open_guard_database

SOON: Any = {"longest_transaction": 0.05}


def at(scheduled_at: float) -> Any:
    return {"scheduled_at": scheduled_at, "deadline": time.time() + 20}


@pytest.fixture
async def own(tmp_path: Path) -> Any:
    """A database for one test: the watermark applies to all of its sagas."""
    opened = await open_guard_database("sqlite", f"sqlite:///{tmp_path / 'own.db'}")
    yield opened
    await opened.connections.close()


def test_the_watermark_has_an_upper_bound() -> None:
    assert watermark.highest_allowed(None, now=100.0, retention=30.0) == 70.0
    assert watermark.highest_allowed(50.0, now=100.0, retention=30.0) == 50.0
    assert watermark.highest_allowed(90.0, now=100.0, retention=30.0) == 70.0


async def test_the_watermark_never_decreases(own: GuardDatabase) -> None:
    assert await watermark.raise_to(own.engine, 50.0) == 50.0
    assert await watermark.raise_to(own.engine, 40.0) == 50.0
    assert await watermark.read(own.engine) == 50.0


async def story(own: GuardDatabase) -> tuple[int, str, int]:
    """A saga ends, is purged, and a late attempt of its step arrives."""
    address = own.current = new_address()
    await own.guard.do(address, "h", own.body("applied"), **at(10.0))
    await own.guard.undo(address, own.body("undone"), **at(11.0))
    forgotten = await watermark.clean_up(own.engine, oldest_open=None, now=1000.0, retention=100.0, **SOON)
    zombie = await own.guard.do(address, "h", own.body("applied"), **at(10.0))
    return forgotten, zombie.kind, (await own.state(address)).net


async def test_a_late_attempt_of_a_purged_saga_is_refused(own: GuardDatabase) -> None:
    assert await story(own) == (1, "late", 0)
    for call in (own.guard.undo, own.guard.confirm):
        assert (await call(new_address(), own.body("undone"), **at(10.0))).kind == "late"
    assert (await own.guard.seal(new_address(), **at(10.0))).kind == "late"


async def test_without_the_watermark_a_purged_step_runs_again(
    own: GuardDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule taken out: the first insert does not look at the watermark."""
    monkeypatch.setattr(SqliteTransaction, "_insert_first_row", SqliteTransaction._insert_row)
    assert await story(own) == (1, "done", 1)


async def test_an_open_saga_is_not_purged(own: GuardDatabase) -> None:
    address = own.current = new_address()
    await own.guard.do(address, "h", own.body("applied"), **at(10.0))
    assert await watermark.clean_up(own.engine, oldest_open=9.0, now=1000.0, retention=100.0, **SOON) == 0
    assert (await own.guard.undo(address, own.body("undone"), **at(950.0))).kind == "done"


async def test_a_saga_is_purged_completely_or_not_at_all(own: GuardDatabase) -> None:
    address = own.current = new_address()
    await own.guard.do(address, "h", own.body("applied"), **at(10.0))
    await own.guard.undo(address, own.body("undone"), **at(990.0))
    assert await watermark.clean_up(own.engine, oldest_open=None, now=1000.0, retention=100.0, **SOON) == 0
    assert (await own.state(address)).do == "do"


async def test_the_watermark_is_enforced_on_every_database(guard_database: GuardDatabase) -> None:
    await watermark.raise_to(guard_database.engine, 100.0)
    address = guard_database.current = new_address()
    assert (await guard_database.guard.do(address, "h", guard_database.body("applied"), **at(99.0))).kind == "late"
    assert (await guard_database.guard.do(address, "h", guard_database.body("applied"), **at(100.0))).kind == "done"
    assert await watermark.clean_up(guard_database.engine, oldest_open=100.0, now=1e9, **SOON) >= 0
    assert (await guard_database.state(address)).applied == 1


async def test_tables_can_be_created_again(guard_database: GuardDatabase) -> None:
    await create_tables(guard_database.engine)
    await create_tables(guard_database.engine)
    assert "saga_guard" in ddl(guard_database.engine.dialect.name)


async def test_a_purge_reads_each_saga_once_and_keeps_those_in_between(
    own: GuardDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost of a purge would grow with its square if a read passed over what earlier ones have seen."""
    monkeypatch.setattr(watermark, "PORTION", 3)
    monkeypatch.setattr(watermark, "_READ_AT_ONCE", 6)
    insert = (
        "insert into saga_guard (saga_id, step, generation, op, reason, created_at)"
        " values (:saga, :step, 1, 'do', 'do', :at)"
    )
    for number in range(40):
        await own.rows(insert, saga=f"saga-{number:02}", step="a", at=10.0)
        await own.rows(insert, saga=f"saga-{number:02}", step="b", at=11.0 if number % 2 else 950.0)
    passed: list[str] = []

    @event.listens_for(own.engine.sync_engine, "before_cursor_execute")
    def note(*call: Any) -> None:
        if "FROM saga_guard" in call[2] and call[2].startswith("SELECT DISTINCT"):
            passed.append(call[3][1])

    assert await watermark.clean_up(own.engine, oldest_open=None, now=1000.0, retention=100.0, **SOON) == 20
    left = {row.saga_id for row in await own.rows("select saga_id from saga_guard")}
    assert left == {f"saga-{number:02}" for number in range(0, 40, 2)}
    assert passed == ["", "saga-11", "saga-23", "saga-35"]
