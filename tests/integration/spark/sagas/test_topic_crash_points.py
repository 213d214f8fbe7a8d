"""Workers and runners killed at the points C1 to C11 of a Spark step whose output is a topic, and files beside it.

Readers (read_committed) see each row once or never, nothing holds them back afterwards, and the stage area is empty.
C12 does not apply to a topic: later writers change nothing. The sink's own points are in
test_topic_sink_crashes.py.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pyarrow.parquet as pq
import pytest
import pytest_asyncio

from saga_spark.sinks.parquet.parquet_pointer import read_pointer
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer
from tests.integration.spark.day_close_project import DayCloseProject
from tests.integration.spark.sagas.breakpoints import breakpoint_at
from tests.integration.spark.sagas.crash_runner import (
    CrashRunner,
    clear_stage,
    of_saga,
    open_crash_runner,
    run_with_kill,
)
from tests.integration.spark.sagas.topic_outputs import (
    events_of,
    kafka_toml,
    must_be_settled,
    named,
    never_written,
    topic_outputs,
)

TIMEOUT = "240s"

# The files are published first: C6 nothing is, C8 the files are and the topic is not. After a `flush` the transaction
# of the topic is open and the broker has all of it; after the `write` it is committed but not recorded.
FORWARD = {
    "C1": "before stage",
    "C2": "in the job",
    "C3": "after stage",
    "C4": "before audit",
    "C5": "after audit",
    "C5 placed": "after prepare",
    "C6": "before publish",
    "C6 open": "after flush",
    "C7": "after write",
    "C8": "before write",
}
DISCARDED = {"C10 before": "before clean_up", "C10 after": "after clean_up"}
UNDONE = {
    "C10 files": "after revert",
    "C10": "before write",
    "C10 open": "after flush",
    "C10 closed": "after write",
}


pytestmark = pytest.mark.slow
"""The sink's own tests visit the same points without a saga."""


@pytest_asyncio.fixture(scope="module")
async def crash_runner(
    temporal: TemporalServer, server: DatabaseServer, kafka: Broker, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[CrashRunner]:
    folder, outputs = tmp_path_factory.mktemp("crash-topic"), topic_outputs(kafka)
    crash = await open_crash_runner("topic", folder, server, temporal.address, outputs, more=kafka_toml(kafka))
    yield crash
    crash.stop()


def cells(points: dict[str, str]) -> Any:
    params = [pytest.param(point, id=f"{name}-{point}".replace(" ", "_")) for name, point in points.items()]
    return pytest.mark.parametrize("point", params)


@cells(FORWARD)
async def test_killed_while_publishing(crash_runner: CrashRunner, kafka: Broker, point: str) -> None:
    saga = f"day-{uuid.uuid4()}"
    files = rows_of_files(crash_runner.day_close)

    async def begin() -> None:
        await crash_runner.client.start("day", {"day": "2026-01-02"}, id=saga)

    await run_with_kill(crash_runner, point, begin)
    await must_be_published_once(crash_runner, kafka, saga)
    assert rows_of_files(crash_runner.day_close) == files + 1


@cells(DISCARDED)
async def test_killed_while_discarding(crash_runner: CrashRunner, kafka: Broker, point: str) -> None:
    saga = f"day-{uuid.uuid4()}"

    async def begin() -> None:
        await crash_runner.client.start("day", {"day": "2026-01-02", "refuse": True}, id=saga)

    await run_with_kill(crash_runner, point, begin)
    story = await finished(crash_runner.client, saga, TIMEOUT)
    assert story["state"] == "COMPENSATED", story
    assert never_written(kafka, topic_of(crash_runner), saga)
    must_be_settled(kafka, crash_runner.day_close, topic_of(crash_runner))
    assert of_saga(crash_runner.day_close, saga) == []


@cells(UNDONE)
async def test_killed_while_undoing_a_topic(crash_runner: CrashRunner, kafka: Broker, point: str) -> None:
    """The files are reverted, the rows of the topic stay, and the saga is PARKED, whichever process was killed."""
    saga = f"day-{uuid.uuid4()}"
    files = rows_of_files(crash_runner.day_close)
    await (await crash_runner.client.start("day", {"day": "2026-01-02"}, id=saga)).result()

    async def begin() -> None:
        await crash_runner.client.undo(saga, reason="wrong day", who="test")

    await run_with_kill(crash_runner, point, begin)
    story = await parked(crash_runner, saga)
    assert "where they cannot be reverted" in story["parked"][0]["why"]
    assert rows_of_files(crash_runner.day_close) == files
    assert [key.key for key in by_key(kafka, topic_of(crash_runner), saga)] == ["10", "11"]
    must_be_settled(kafka, crash_runner.day_close, topic_of(crash_runner))
    decision = {"step": "facts", "decision": "done", "reason": "told", "evidence": "events", "who": "test"}
    await crash_runner.client.resolve(saga, decision)
    assert (await finished(crash_runner.client, saga, TIMEOUT))["state"] == "COMPENSATED"
    await clear_stage(crash_runner.day_close)
    assert of_saga(crash_runner.day_close, saga) == []


@cells({"C11": "after flush"})
async def test_a_frozen_publisher_resumes_after_another_has_published(
    crash_runner: CrashRunner, kafka: Broker, point: str
) -> None:
    """The publisher freezes during its transaction: another one fences it, and its commit has no effect."""
    saga = f"day-{uuid.uuid4()}"
    with breakpoint_at(crash_runner.day_close.url, point) as stop:
        await crash_runner.client.start("day", {"day": "2026-01-02"}, id=saga)
        stop.reached()
        frozen = crash_runner.waiting_worker()
        frozen.freeze()
    try:
        await must_be_published_once(crash_runner, kafka, saga)
    finally:
        frozen.thaw()
    await asyncio.sleep(5.0)
    await must_be_published_once(crash_runner, kafka, saga)


@cells({"C11 two": "in the job"})
async def test_two_concurrent_runners_with_one_key(crash_runner: CrashRunner, kafka: Broker, point: str) -> None:
    """The first worker is considered dead; it resumes while the second works."""
    saga = f"day-{uuid.uuid4()}"
    with breakpoint_at(crash_runner.day_close.url, point) as stop:
        await crash_runner.client.start("day", {"day": "2026-01-02"}, id=saga)
        stop.reached()
        [first] = crash_runner.waiting_runners()
        frozen = next(worker for worker in crash_runner.workers if worker.pid == first.ppid())
        frozen.freeze()
        try:
            stop.reached(count=2)
        finally:
            frozen.thaw()
    await must_be_published_once(crash_runner, kafka, saga)


async def must_be_published_once(crash_runner: CrashRunner, kafka: Broker, saga: str) -> None:
    story = await finished(crash_runner.client, saga, TIMEOUT)
    assert story["state"] == "COMPLETED", story["reason"]
    assert [key.key for key in by_key(kafka, topic_of(crash_runner), saga)] == ["10", "11"]
    must_be_settled(kafka, crash_runner.day_close, topic_of(crash_runner))
    await clear_stage(crash_runner.day_close)
    assert of_saga(crash_runner.day_close, saga) == []


async def parked(crash_runner: CrashRunner, saga: str) -> dict[str, Any]:
    """The story once its undo is parked; until that has begun, the run that is undone is COMPLETED."""
    end = time.monotonic() + float(TIMEOUT[:-1])
    while (story := await finished(crash_runner.client, saga, TIMEOUT))["state"] == "COMPLETED":
        assert time.monotonic() < end, "no undo has begun"
        await asyncio.sleep(0.2)
    assert story["state"] == "PARKED", story
    return story


def topic_of(crash_runner: CrashRunner) -> str:
    return named(crash_runner.outputs)


def by_key(kafka: Broker, topic: str, saga: str) -> list[Any]:
    return sorted(events_of(kafka, topic, saga), key=lambda record: record.key)


def rows_of_files(day_close: DayCloseProject) -> int:
    place = day_close.folder / "out" / "totals"
    files = read_pointer(str(place)) if (place / "_current.json").exists() else []
    return sum(pq.read_metadata(file).num_rows for file in files)
