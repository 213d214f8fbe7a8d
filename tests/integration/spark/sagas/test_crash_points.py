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
from tests.integration.spark.sagas.breakpoints import closed
from tests.integration.spark.sagas.crash_runner import Theatre, of_saga, open_theatre, play

PATIENCE = "240s"
SINKS = {"iceberg": ICEBERG, "parquet": PARQUET, "postgresql": POSTGRESQL}

# C1 before the job, C2 in the middle of it, C3 done but not recorded, C4 recorded, C5 in the audit, C6 before the
# sink's commit, C7 and C9 after it but before anybody knows, C8 between the two outputs of the saga.
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
    ("C10", "before unpublish", "parquet"),
    ("C10", "after unpublish", "iceberg"),
]


# Each costs a cold start of Spark. What is killed in the midst of a commit is met in every run by the sinks' own tests.
pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module")
async def stage(
    temporal: TemporalServer, server: DatabaseServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Callable[[str], Awaitable[Theatre]]]:
    """Gives the theatre of a sink; its workers stay warm until another sink is asked for."""
    current: list[Theatre] = []

    async def theatre_of(sink: str) -> Theatre:
        if current and current[0].sink == sink:
            return current[0]
        while current:
            current.pop().stop()
        folder = tmp_path_factory.mktemp(f"crash-{sink}")
        current.append(await open_theatre(sink, folder, server, temporal.address, SINKS[sink]))
        return current[0]

    yield theatre_of
    while current:
        current.pop().stop()


@pytest_asyncio.fixture
async def theatre(stage: Callable[[str], Awaitable[Theatre]], sink: str) -> Theatre:
    return await stage(sink)


def cells(rows: list[tuple[str, str, str]]) -> Any:
    """One test for each row, those of one sink together."""
    found = []
    for name, point, sink in sorted(rows, key=lambda row: row[2]):
        found.append(pytest.param(sink, point, id=f"{name}-{point.replace(' ', '_')}-{sink}"))
    return pytest.mark.parametrize(("sink", "point"), found)


@cells(FORWARD)
async def test_killed_on_the_way_forward(theatre: Theatre, point: str) -> None:
    books, saga = theatre.books, f"day-{uuid.uuid4()}"
    before = rows(theatre)

    async def begin() -> None:
        await theatre.client.start("day", {"day": "2026-01-02"}, id=saga)

    await play(theatre, point, begin)
    story = await finished(theatre.client, saga, PATIENCE)
    assert story["state"] == "COMPLETED", story["reason"]
    after = rows(theatre)
    assert after[0] - before[0] == Decimal(2), "the facts are there once"
    await (await theatre.client.undo(saga, reason="tidy up", who="test")).result()
    assert rows(theatre) == before
    assert of_saga(books, saga) == []


@cells(BACKWARD)
async def test_killed_on_the_way_back(theatre: Theatre, point: str) -> None:
    books, saga = theatre.books, f"day-{uuid.uuid4()}"
    before = rows(theatre)
    discard = "clean" in point
    if not discard:
        await (await theatre.client.start("day", {"day": "2026-01-02"}, id=saga)).result()

    async def begin() -> None:
        if discard:
            await theatre.client.start("day", {"day": "2026-01-02", "refuse": True}, id=saga)
        else:
            await theatre.client.undo(saga, reason="wrong day", who="test")

    await play(theatre, point, begin)
    story = await finished(theatre.client, saga, PATIENCE)
    while story["state"] != "COMPENSATED":  # the run that is undone stays COMPLETED until its undo has begun
        await asyncio.sleep(0.2)
        story = await finished(theatre.client, saga, PATIENCE)
    assert rows(theatre) == before
    assert of_saga(books, saga) == []


@cells([("C11", "before publish", sink) for sink in SINKS])
async def test_a_frozen_publisher_wakes_after_its_publication_was_taken_back(theatre: Theatre, point: str) -> None:
    """C11: it changes nothing any more."""
    books, saga = theatre.books, f"day-{uuid.uuid4()}"
    before = rows(theatre)
    with closed(books.url, point) as turnstile:
        await theatre.client.start("day", {"day": "2026-01-02"}, id=saga)
        turnstile.reached()
        frozen = theatre.who_waits()
        frozen.freeze()
    try:
        story = await finished(theatre.client, saga, PATIENCE)
        assert story["state"] == "COMPLETED"
        await (await theatre.client.undo(saga, reason="wrong day", who="test")).result()
        assert rows(theatre) == before
    finally:
        frozen.thaw()
    await asyncio.sleep(5.0)
    assert rows(theatre) == before


def rows(theatre: Theatre) -> tuple[Decimal, Decimal]:
    """The sums of both outputs as a reader sees them."""
    parts = read(theatre.books, SINKS[theatre.sink])
    facts, totals = (sum((Decimal(str(row["amount"])) for row in part or ()), Decimal(0)) for part in parts)
    return facts, totals
