"""Workers and runners killed at the points C1 to C12 of a Spark step: readers see all or nothing, never twice.

The sinks' own crash points, each with each sink, are in test_*_sink_crashes.py; here a whole saga goes through them.
The points take turns with the sinks, so that every point and every sink meets a killed worker.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from decimal import Decimal
from typing import Any

import pytest
import pytest_asyncio

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer
from tests.integration.spark.day_close_project import ICEBERG, PARQUET, POSTGRESQL, read
from tests.integration.spark.sagas.breakpoints import breakpoint_at
from tests.integration.spark.sagas.crash_runner import CrashRunner, of_saga, open_crash_runner, run_with_kill

TIMEOUT = "240s"
SINKS = {"iceberg": ICEBERG, "parquet": PARQUET, "postgresql": POSTGRESQL}

# C1 before the job, C2 in the middle of it, C3 done but not recorded, C4 recorded, C5 in the audit, C6 before the
# sink's commit, C7 and C9 after it but before it is recorded, C8 between the two outputs of the saga.
FORWARD = [
    ("C1", "before stage", "parquet"),
    ("C2", "in the job", "iceberg"),
    ("C3", "after stage", "postgresql"),
    ("C4", "before audit", "parquet"),
    ("C5", "after audit", "iceberg"),
    ("C5 placed", "after prepare", "postgresql"),
    ("C6", "before publish", "iceberg"),
    ("C6", "before publish", "postgresql"),
    ("C7", "after publish", "parquet"),
    ("C8", "after publish", "postgresql"),
    ("C9", "after publish", "iceberg"),
]
BACKWARD = [
    ("C10", "before clean_up", "postgresql"),
    ("C10", "after clean_up", "iceberg"),
    ("C10", "before revert", "parquet"),
    ("C10", "after revert", "iceberg"),
]


# Each costs a cold start of Spark. What is killed in the midst of a commit is met in every run by the sinks' own tests.
pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module")
async def stage(
    temporal: TemporalServer, server: DatabaseServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Callable[[str], Awaitable[CrashRunner]]]:
    """Returns the crash runner of a sink; its workers keep running until another sink is requested."""
    current: list[CrashRunner] = []

    async def theatre_of(sink: str) -> CrashRunner:
        if current and current[0].sink == sink:
            return current[0]
        while current:
            current.pop().stop()
        folder = tmp_path_factory.mktemp(f"crash-{sink}")
        current.append(await open_crash_runner(sink, folder, server, temporal.address, SINKS[sink]))
        return current[0]

    yield theatre_of
    while current:
        current.pop().stop()


@pytest_asyncio.fixture
async def crash_runner(stage: Callable[[str], Awaitable[CrashRunner]], sink: str) -> CrashRunner:
    return await stage(sink)


def cells(rows: list[tuple[str, str, str]]) -> Any:
    """One test for each row, those of one sink together."""
    collected = []
    for name, point, sink in sorted(rows, key=lambda row: row[2]):
        collected.append(pytest.param(sink, point, id=f"{name}-{point.replace(' ', '_')}-{sink}"))
    return pytest.mark.parametrize(("sink", "point"), collected)


@cells(FORWARD)
async def test_killed_while_publishing(crash_runner: CrashRunner, point: str) -> None:
    day_close, saga = crash_runner.day_close, f"day-{uuid.uuid4()}"
    before = rows(crash_runner)

    async def begin() -> None:
        await crash_runner.client.start("day", {"day": "2026-01-02"}, id=saga)

    await run_with_kill(crash_runner, point, begin)
    story = await finished(crash_runner.client, saga, TIMEOUT)
    assert story["state"] == "COMPLETED", story["reason"]
    after = rows(crash_runner)
    assert after[0] - before[0] == Decimal(2), "the facts are there once"
    await (await crash_runner.client.undo(saga, reason="tidy up", who="test")).result()
    assert rows(crash_runner) == before
    assert of_saga(day_close, saga) == []


@cells(BACKWARD)
async def test_killed_while_undoing(crash_runner: CrashRunner, point: str) -> None:
    day_close, saga = crash_runner.day_close, f"day-{uuid.uuid4()}"
    before = rows(crash_runner)
    discard = "clean" in point
    if not discard:
        await (await crash_runner.client.start("day", {"day": "2026-01-02"}, id=saga)).result()

    async def begin() -> None:
        if discard:
            await crash_runner.client.start("day", {"day": "2026-01-02", "refuse": True}, id=saga)
        else:
            await crash_runner.client.undo(saga, reason="wrong day", who="test")

    await run_with_kill(crash_runner, point, begin)
    story = await finished(crash_runner.client, saga, TIMEOUT)
    while story["state"] != "COMPENSATED":  # the run that is undone stays COMPLETED until its undo has begun
        await asyncio.sleep(0.2)
        story = await finished(crash_runner.client, saga, TIMEOUT)
    assert rows(crash_runner) == before
    assert of_saga(day_close, saga) == []


@cells([("C11", "before publish", sink) for sink in SINKS])
async def test_a_frozen_publisher_resumes_after_its_publication_was_reverted(
    crash_runner: CrashRunner, point: str
) -> None:
    """C11: it changes nothing any more."""
    day_close, saga = crash_runner.day_close, f"day-{uuid.uuid4()}"
    before = rows(crash_runner)
    with breakpoint_at(day_close.url, point) as stop:
        await crash_runner.client.start("day", {"day": "2026-01-02"}, id=saga)
        stop.reached()
        frozen = crash_runner.waiting_worker()
        frozen.freeze()
    try:
        story = await finished(crash_runner.client, saga, TIMEOUT)
        assert story["state"] == "COMPLETED"
        await (await crash_runner.client.undo(saga, reason="wrong day", who="test")).result()
        assert rows(crash_runner) == before
    finally:
        frozen.thaw()
    await asyncio.sleep(5.0)
    assert rows(crash_runner) == before


def rows(crash_runner: CrashRunner) -> tuple[Decimal, Decimal]:
    """The sums of both outputs as a reader sees them."""
    parts = read(crash_runner.day_close, SINKS[crash_runner.sink])
    facts, totals = (sum((Decimal(str(row["amount"])) for row in part or ()), Decimal(0)) for part in parts)
    return facts, totals
