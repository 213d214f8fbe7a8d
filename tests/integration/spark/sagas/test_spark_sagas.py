"""Spark jobs as steps of real sagas: published together, refused, undone; readers see all or nothing."""

from __future__ import annotations

import asyncio
import time
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from saga_activities.connections import DatabaseConnections
from saga_spark.settings import spark_settings
from saga_spark.staging.stage_clean_up import drop_undo_data
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.processes import TemporalServer
from tests.integration.spark.day_close_project import (
    ICEBERG,
    PARQUET,
    POSTGRESQL,
    DayCloseProject,
    open_day_close_project,
    read,
)
from tests.integration.spark.sagas.crash_runner import clear_stage

TIMEOUT = "300s"
TOTAL = Decimal("50.00")


def page(uri: str) -> str:
    return Path(uri.removeprefix("file://")).read_text()


async def forget_all(day_close: DayCloseProject) -> None:
    """The worker's retention round, as if the time for undos were over: the guard is purged."""
    day_close.execute("delete from saga_guard")
    connections = DatabaseConnections([day_close.project.settings.sql_connection("shop")])
    engine = connections.engine("shop")
    assert len(await drop_undo_data(engine, spark_settings(day_close.project.settings), before=time.time() + 60)) == 4
    await connections.close()


@pytest.mark.slow  # the demo does the same with Iceberg, test_topic_crash_points.py runs a saga with files and a topic
@pytest.mark.parametrize(
    "outputs",
    [
        pytest.param(ICEBERG, id="iceberg"),
        pytest.param(PARQUET, id="parquet"),
        pytest.param(POSTGRESQL, id="postgresql"),
    ],
)
async def test_a_day_is_published_rejected_and_undone(
    temporal: TemporalServer, server: DatabaseServer, tmp_path: Path, outputs: Any
) -> None:
    publish = "together" if outputs is ICEBERG else "each"
    day_close = await open_day_close_project(tmp_path / "shop", server, temporal.address, outputs, publish=publish)
    async with running_worker(day_close.project) as client:
        refused = f"refused-{uuid.uuid4()}"
        await client.start("day", {"day": "2026-01-01", "refuse": True}, id=refused)
        story = await finished(client, refused, TIMEOUT)
        assert (story["state"], story["reason"]["message"]) == ("COMPENSATED", "the agency refuses the commission")
        assert not any(read(day_close, outputs)), "nothing was ever visible"
        assert day_close.staged() == []

        tampered = f"tampered-{uuid.uuid4()}"
        await client.start("day", {"day": "2026-01-01", "factor": "1.1"}, id=tampered)
        story = await finished(client, tampered, TIMEOUT)
        assert story["state"] == "COMPENSATED"
        assert story["reason"]["message"].startswith(
            "the audit rejected the output: expected 50.00 as the sum of amount"
        )
        details = story["reason"]["details"]
        assert [check["kind"] for check in details["checks"]] == ["sum", "reconcile"]
        assert details["checks"][1]["samples"], "the report shows rows that differ"
        assert page(details["report"]).startswith("<!doctype html>")
        assert not any(read(day_close, outputs))

        good = f"good-{uuid.uuid4()}"
        run = await client.start("day", {"day": "2026-01-01"}, id=good)
        assert await run.result() == {"rows": 10}
        facts, totals = read(day_close, outputs)
        assert len(facts) == 10
        assert sum(Decimal(str(row["amount"])) for row in facts) == TOTAL
        assert sum(Decimal(str(row["amount"])) for row in totals) == TOTAL

        story = await finished(client, good, TIMEOUT)
        result = next(row for row in story["steps"] if row["id"] == "facts")["result"]
        assert (result["rows"], result["columns"]["amount"]) == (10, {"nulls": 0, "sum": Decimal("50.00")})
        await clear_stage(day_close)
        kept = {row["publish_key"] for row in day_close.query("select * from saga_output where state = 'QUARANTINED'")}
        assert {name.partition("/")[0] for name in day_close.staged()} == kept, (
            "only what was refused is kept to look at"
        )

        await (await client.undo(good, reason="wrong day", who="ada")).result()
        story = await finished(client, good, TIMEOUT)
        assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "undone")
        assert not any(read(day_close, outputs)), "both outputs were reverted"
        assert day_close.query("select * from commissions") == []

        again = await client.start("day", {"day": "2026-01-01"}, id=good, again=True)
        assert await again.result() == {"rows": 10}
        facts, totals = read(day_close, outputs)
        assert len(facts) == 10
        assert sum(Decimal(str(row["amount"])) for row in totals) == TOTAL

        await forget_all(day_close)
        assert tuple(map(len, read(day_close, outputs))) == (10, 3), "only what an undo would need is gone"


@pytest.mark.slow
async def test_a_reader_never_sees_one_table_without_the_other(
    temporal: TemporalServer, server: DatabaseServer, tmp_path: Path
) -> None:
    day_close = await open_day_close_project(tmp_path / "shop", server, temporal.address, publish="together")
    seen: set[tuple[int, int]] = set()
    stop = asyncio.Event()

    async def watch() -> None:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("lake", **day_close.project.settings.catalogs["lake"])
        while not stop.is_set():
            seen.add(await asyncio.to_thread(_rows_of_both, catalog, day_close))
            await asyncio.sleep(0.02)

    async with running_worker(day_close.project) as client:
        watching = asyncio.create_task(watch())
        saga = f"day-{uuid.uuid4()}"
        run = await client.start("day", {"day": "2026-01-02"}, id=saga)
        await run.result()
        await (await client.undo(saga, reason="wrong day", who="ada")).result()
        stop.set()
        await watching
    assert seen == {(0, 0), (2, 1)}


def _rows_of_both(catalog: Any, day_close: DayCloseProject) -> tuple[int, int]:
    """Row counts of both tables in one snapshot of the catalog's database."""
    from pyiceberg.table import StaticTable

    pointers = (
        day_close.query("select table_name, metadata_location from iceberg_tables") if _has_catalog(day_close) else []
    )
    counts = {}
    for row in pointers:
        table = StaticTable.from_metadata(row["metadata_location"])
        snapshot = table.current_snapshot()
        rows = snapshot.summary["total-records"] if snapshot and snapshot.summary else None
        counts[row["table_name"]] = int(rows or 0)
    return counts.get("facts", 0), counts.get("totals", 0)


def _has_catalog(day_close: DayCloseProject) -> bool:
    return bool(day_close.query("select 1 from information_schema.tables where table_name = 'iceberg_tables'"))
