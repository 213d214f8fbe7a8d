"""Sources of a reconciliation: a window of the guard, and staged and published outputs against the ledger."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from saga_activities.guard import schema
from saga_spark import output_records
from saga_spark.output_records import OutputRow
from saga_spark.reconcile.extracts import READ_MARGIN, ReconciliationScope, extract_database
from saga_spark.reconcile.findings import Finding
from saga_spark.reconcile.output_checks import (
    OutputEvidence,
    check_output,
    collect_evidence,
    find_orphans,
    orphan_findings,
    read_output_records,
    without_published_effects,
)
from saga_spark.settings import SparkSettings
from saga_spark.sinks.sink import Publication, sink_for
from saga_workers.reconcile.repair import _discard_staged
from sagas.settings.reconcile import EffectTable
from tests.helpers.database_servers import DatabaseServer
from tests.integration.spark.staged_outputs import stage

NOW = 1_790_000_000.0
OUTPUT = {"parquet": "out", "mode": "append"}


@pytest.fixture
async def database(server: DatabaseServer) -> AsyncIterator[tuple[AsyncEngine, str]]:
    name = f"sources_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.url().replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    engine = create_async_engine(server.url(name))
    await schema.create_tables(engine)
    await output_records.create_table(engine)
    yield engine, server.url(name).replace("+psycopg", "")
    await engine.dispose()


def ids(folder: Path) -> set[str]:
    return set(pq.read_table(folder / "guard" / "shop.parquet").column("saga_id").to_pylist())


async def test_a_window_reads_only_its_own_rows(database: tuple[AsyncEngine, str], tmp_path: Path) -> None:
    engine, url = database
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "insert into saga_guard select 's' || n, 'a', 1, 'do', 'do', null, null, null, %s::double precision + n "
            "from generate_series(1, 50000) n",
            [NOW - 100_000],
        )
        connection.execute("insert into saga_guard values ('s7', 'b', 1, 'do', 'do', null, null, null, %s)", [NOW])
        connection.execute("insert into saga_guard values ('s7', 'a', 1, 'undo', 'undo', null, null, null, %s)", [NOW])
        connection.execute("create table orders (id int, saga text, at timestamptz, total numeric(9,2))")
        connection.execute("insert into orders values (1, 's1', to_timestamp(%s), 1), (2, 's7', to_timestamp(%s), 2.5)",
                           [NOW - 90_000, NOW])  # fmt: skip
        connection.execute("analyze saga_guard")
        query = "select saga_id from saga_guard where created_at >= %s"
        plan = "\n".join(row[0] for row in connection.execute(f"explain {query}", [NOW - READ_MARGIN]))  # pyright: ignore
        assert "saga_guard_created" in plan, plan
    orders = EffectTable(
        connection="shop", table="orders", key=("id",), saga_id="saga", step="b", amounts={"total": "t"}, time="at"
    )
    counts = await extract_database(
        engine,
        "shop",
        [orders],
        tmp_path / "window",
        ReconciliationScope(since=NOW - 60, older_saga_ids=("s9",)),
        [orders],
    )
    assert counts == {"guard": 3, "outbox": 0, "orders": 1}
    assert ids(tmp_path / "window") == {"s7", "s9"}
    rows = pq.read_table(tmp_path / "window" / "guard" / "shop.parquet").to_pylist()
    assert {(row["saga_id"], row["step"], row["undone"]) for row in rows} == {
        ("s7", "a", True), ("s7", "b", False), ("s9", "a", False),
    }  # fmt: skip
    (row,) = pq.read_table(tmp_path / "window" / "effects" / "orders.parquet").to_pylist()
    assert (row["bound"], json.loads(row["row"]), row["a0"], row["time"]) == ("s7", {"id": 2}, "2.50", NOW)
    assert (await extract_database(engine, "shop", [orders], tmp_path / "all", ReconciliationScope(), [orders]))[
        "guard"
    ] == 50_001
    extract = await extract_database(
        engine, "shop", [orders], tmp_path / "one", ReconciliationScope(saga_id="s7"), [orders]
    )
    assert (extract["guard"], extract["orders"]) == (2, 1)


async def keep(engine: AsyncEngine, publication: Publication, state: str) -> OutputRow:
    """The ledger's row of a publication."""
    target = publication.tag.target
    async with engine.begin() as connection:
        row = await output_records.take_over(
            connection, target, saga="day", place="out", spec={**OUTPUT, "mode": "append"}, together=False
        )
        await connection.execute(output_records.set_staged(target, row.epoch, publication.manifest))
        await connection.execute(output_records.set_state(target, state))  # pyright: ignore[reportArgumentType]
    (output_row,) = [
        record for record in await read_output_records(engine, ReconciliationScope()) if record.target == target
    ]
    return output_row


async def test_what_is_staged_and_published(database: tuple[AsyncEngine, str], tmp_path: Path) -> None:
    engine, _ = database
    settings = SparkSettings(root=tmp_path, stage=(tmp_path / "stage").as_uri())
    sink = sink_for("parquet", settings)
    sagas = {name: stage(settings, OUTPUT, [{"n": 1}], saga=name) for name in ("good", "left", "gone", "stray")}
    for name in ("good", "gone", "stray"):
        publication = sagas[name]
        sink.prepare(publication)
        sink.publish([publication], sink.read_state([publication]), together=False)
    rows = {name: await keep(engine, sagas[name], state)
            for name, state in (("good", "PUBLISHED"), ("left", "STAGED"), ("gone", "PUBLISHED"))}  # fmt: skip
    sink.revert([sagas["gone"]], together=False)  # by hand, past the saga
    evidence = {name: collect_evidence(row, settings) for name, row in rows.items()}
    assert check_output(evidence["good"], "COMPLETED") is None
    for name, state, kind in (("left", "COMPENSATED", "staged_left"), ("gone", "COMPLETED", "saga_without_effect")):
        finding = check_output(evidence[name], state)
        assert finding is not None
        assert finding.kind == kind
    (stray,) = orphan_findings(find_orphans(rows.values(), settings), {})
    assert (stray.kind, stray.saga_id, stray.place) == ("published_unclaimed", "stray", "out")
    assert [orphan.target.saga_id for orphan in find_orphans(rows.values(), settings, {"stray"})] == ["stray"]
    assert find_orphans(rows.values(), settings, {"good"}) == []
    missing = [Finding("saga_without_effect", "stray", step=step, place=place)
               for step, place in (("facts", None), ("facts", "shop.orders"), ("other", None))]  # fmt: skip
    assert without_published_effects(missing, [stray]) == missing[1:]

    assert "removed" in await _discard_staged(engine, settings, rows["left"].target)
    records = await read_output_records(engine, ReconciliationScope())
    (again,) = [record for record in records if record.target == rows["left"].target]
    assert (again.state, again.epoch) == ("DISCARDED", rows["left"].epoch + 1)
    assert check_output(collect_evidence(again, settings), "COMPENSATED") is None


@pytest.mark.parametrize(
    ("recorded_state", "saga", "staged", "visible", "kind"),
    [
        ("STAGED", "RUNNING", True, False, None),
        ("STAGED", "PARKED", True, False, None),
        ("PUBLISHED", "COMPLETED", True, True, None),  # the worker's clean-up takes the stage in its time
        ("QUARANTINED", "COMPENSATED", True, False, None),  # kept for inspection
        ("STAGED", "TERMINATED", True, False, None),  # reported through its guard row: open effects
        ("STAGING", "COMPENSATED", False, False, None),
        ("STAGING", "COMPENSATED", True, False, "staged_left"),
        ("STAGING", "TERMINATED", True, False, "staged_left"),
        ("DISCARDED", "COMPENSATED", True, False, "staged_left"),
        ("STAGED", None, True, False, "staged_left"),
        ("STAGED", "COMPLETED", True, False, "saga_without_effect"),
        ("PUBLISHED", "COMPLETED", False, False, "saga_without_effect"),
        ("PUBLISHED", "COMPENSATED", False, True, "effect_not_undone"),
        ("REVERTED", "COMPENSATED", False, True, "published_unclaimed"),
    ],
)
def test_each_state_of_an_output(
    tmp_path: Path, recorded_state: Any, saga: str | None, staged: bool, visible: bool, kind: str | None
) -> None:
    settings = SparkSettings(root=tmp_path, stage=(tmp_path / "stage").as_uri())
    target = stage(settings, OUTPUT, [{"n": 1}]).tag.target
    row = OutputRow(target, 1, "STAGED", "day", "out", False, OUTPUT)
    finding = check_output(OutputEvidence(replace(row, state=recorded_state), staged, visible), saga)
    assert (finding.kind if finding else None) == kind


async def test_every_kind_of_guard_database_can_be_read(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    await schema.create_tables(engine)
    async with engine.begin() as connection:
        for op, reason in (("do", "do"), ("confirm", "undo"), ("undo", "undo")):
            await connection.exec_driver_sql(
                "insert into saga_guard values ('s1', 'a', 1, ?, ?, null, ?, null, ?)",
                (op, reason, '{"n":123456789012345678.123456789}', NOW),
            )
        await connection.exec_driver_sql("create table orders (id integer, saga text, at text)")
        await connection.exec_driver_sql(
            "insert into orders values (1, 's1', '2026-09-21 14:13:20'), (2, 's1/b', null)"
        )
    orders = EffectTable(
        connection="shop", table="orders", key=("id",), saga_id="saga", step="a", amounts={"id": "n"}, time="at"
    )
    for scope in (ReconciliationScope(), ReconciliationScope(saga_id="s1"), ReconciliationScope(since=NOW - 60)):
        folder = tmp_path / uuid.uuid4().hex
        counts = await extract_database(engine, "shop", [orders], folder, scope, [orders])
        assert counts == {"guard": 1, "outbox": 0, "orders": 1 if scope.since else 2}
        (row,) = pq.read_table(folder / "guard" / "shop.parquet").to_pylist()
        assert (row["reason"], row["undone"], row["result"]) == ("do", True, '{"n":"123456789012345678.123456789"}')
    await engine.dispose()
