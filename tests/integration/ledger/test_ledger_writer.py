"""How a worker's rows reach the ledger: in batches, also when the database is down or refuses one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from saga_activities.ledger.records import RunFilter
from saga_activities.ledger.schema import create_ledger
from saga_workers.ledger import writer as writer_module
from saga_workers.ledger.run_ledger import RunLedger
from saga_workers.ledger.writer import LedgerMetrics, LedgerWriter, ObservedState
from sagas.protocol.saga_view import SagaView
from tests.helpers.waiting import until

GRACE = timedelta(seconds=10)
BEGAN = 1_790_000_000.0


def observed(saga_id: str, state: Any = "COMPLETED", at: float = BEGAN, **fields: Any) -> ObservedState:
    view = SagaView(
        id=saga_id, saga="s", state=state, started_at="2026-09-21T13:33:20.000Z", ended_at=None, **fields
    ).to_json()
    return ObservedState(saga_id, view, {}, at, {"n": 1}, {"large": "x" * 100})


@pytest_asyncio.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = open_engine("shop", f"sqlite:///{tmp_path / 'ledger.db'}", 2)
    yield engine
    await engine.dispose()


@pytest.fixture
def metrics() -> LedgerMetrics:
    return LedgerMetrics(CollectorRegistry())


def counted(metrics: LedgerMetrics, outcome: str) -> float:
    return metrics.rows.labels(outcome)._value.get()


async def recorded(engine: AsyncEngine) -> dict[str, str]:
    return {row.view.id: row.view.state for row in await RunLedger("shop", lambda: engine).list(RunFilter(), 1000)}


async def test_what_waits_is_written_before_the_worker_ends(engine: AsyncEngine, metrics: LedgerMetrics) -> None:
    await create_tables(engine)
    await create_ledger(engine)
    writer = LedgerWriter(metrics)
    for number in range(250):
        writer.add(observed(f"s-{number}"))
    writer.start(engine)
    await asyncio.to_thread(writer.add, observed("from a thread"))
    await writer.stop(GRACE)
    assert len(await recorded(engine)) == 251
    assert counted(metrics, "written") == 251
    assert metrics.waiting._value.get() == 0


async def test_rows_follow_when_the_database_is_back(engine: AsyncEngine, metrics: LedgerMetrics) -> None:
    writer = LedgerWriter(metrics)
    writer.start(engine)  # without its table
    writer.add(observed("parked and done", "PARKED"))
    writer.add(observed("s-1"))

    async def waits() -> bool:
        return metrics.waiting._value.get() == 2

    await until(waits)
    writer.add(observed("parked and done", "COMPLETED", at=BEGAN + 5))
    await create_tables(engine)
    await create_ledger(engine)
    await writer.stop(GRACE)
    assert await recorded(engine) == {"parked and done": "COMPLETED", "s-1": "COMPLETED"}


async def test_a_worker_that_stops_does_not_wait_for_a_database_that_is_down(
    engine: AsyncEngine, metrics: LedgerMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    writer = LedgerWriter(metrics)
    writer.start(engine)
    writer.add(observed("s-1"))
    await writer.stop(timedelta(seconds=0.3))
    assert "1 row is not in the ledger; saga reconcile --repair writes them" in caplog.text


async def test_a_row_that_the_database_refuses_does_not_hold_back_the_others(
    engine: AsyncEngine, metrics: LedgerMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    await create_tables(engine)
    await create_ledger(engine)
    async with engine.connect() as connection:
        await connection.execute(
            text(
                "create trigger poison before insert on saga_run when new.saga_id = 'poison' "
                "begin select raise(abort, 'no such saga'); end"
            )
        )
    writer = LedgerWriter(metrics)
    for saga_id in ("s-1", "poison", "s-2"):
        writer.add(observed(saga_id))
    writer.start(engine)
    await writer.stop(GRACE)
    assert set(await recorded(engine)) == {"s-1", "s-2"}
    assert (counted(metrics, "written"), counted(metrics, "refused")) == (2, 1)
    assert "row refused by the ledger's database: no such saga" in caplog.text


async def test_too_many_rows_drop_the_oldest(
    engine: AsyncEngine, metrics: LedgerMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_WAITING_ROWS", 3)
    writer = LedgerWriter(metrics)
    for number in range(5):
        writer.add(observed(f"s-{number}"))
    writer.start(engine)

    async def dropped() -> bool:
        return counted(metrics, "dropped") == 2

    await until(dropped)
    await create_tables(engine)
    await create_ledger(engine)
    await writer.stop(GRACE)
    assert set(await recorded(engine)) == {"s-2", "s-3", "s-4"}


async def test_an_id_longer_than_its_column_is_left_out(
    engine: AsyncEngine, metrics: LedgerMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    await create_tables(engine)
    await create_ledger(engine)
    writer = LedgerWriter(metrics)
    writer.add(observed("x" * 600))
    writer.add(observed("s-1"))
    writer.start(engine)
    await writer.stop(GRACE)
    assert set(await recorded(engine)) == {"s-1"}
    assert "the id is too long" in caplog.text
