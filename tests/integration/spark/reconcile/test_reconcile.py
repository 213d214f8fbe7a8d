"""`saga reconcile` over real sagas, their database and their topics: consistent data has no findings; corruption is
reported with its key and the repair command; safe repairs are applied."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from temporalio.client import (
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleSpec,
)

from saga_activities.locks.lock_table import LockTable
from saga_spark.reconcile.extracts import OUTBOX_SCHEMA, READ_MARGIN, ParquetRowWriter, ReconciliationScope
from saga_spark.reconcile.topic_extract import read_topics
from saga_workers.client import Client
from saga_workers.doctor.saga_checks import check_locks
from saga_workers.runtime.databases import open_command_engine, set_up_database
from saga_workers.views.locks import list_locks
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import LIMIT, until
from tests.integration.spark.reconcile.reconcile_environment import TIMEOUT, Shop, run_saga

NOW = "extract(epoch from now())"


def classes(report: dict[str, Any]) -> dict[str, set[Any]]:
    collected: dict[str, set[Any]] = {}
    for finding in report["findings"]:
        collected.setdefault(finding["class"], set()).add(finding["saga_id"])
    return collected


def finding_of(report: dict[str, Any], event: str) -> tuple[str, str]:
    """The class of the finding about an event, and the command that repairs it."""
    [finding] = [finding for finding in report["findings"] if finding["row"] == {"event_id": event}]
    assert finding["place"] == "shop.saga_outbox"
    return finding["class"], finding["command"]


def emit(shop: Shop, saga_id: str, step: str, event: str, status: str, topic: str) -> None:
    """A row of the outbox that the engine would not have written: as if the step of a saga had."""
    shop.sql(
        "insert into saga_outbox (event_id, topic, value, headers, saga_id, step, generation, status, created_at, "
        f"published_at) values ('{event}', '{topic}', '1', '{{}}', '{saga_id}', '{step}', 1, '{status}', {NOW}, {NOW})"
    )


def event_of(shop: Shop, saga_id: str, step: str) -> str:
    [(event,)] = shop.sql(f"select event_id from saga_outbox where saga_id = '{saga_id}' and step = '{step}'")
    return event


def records_since(shop: Shop, folder: Path, since: float) -> int:
    """How many records of the orders a window costs."""
    with ParquetRowWriter(folder / "outbox" / "shop.parquet", OUTBOX_SCHEMA) as rows:
        rows.add("shop", "s", "place", 1, "e", shop.orders, "PUBLISHED", since, since, False)
    topics = read_topics(
        shop.project.settings.kafka, folder, ReconciliationScope(since=since), time.time(), {"shop": "shop"}
    )
    assert topics is not None
    return topics.rows


@pytest.mark.slow
async def test_mismatches_are_reported_and_repaired(
    temporal: TemporalServer,
    server: DatabaseServer,
    kafka: Broker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = Shop(tmp_path / "project", server, temporal, kafka)
    await set_up_database(shop.project.settings.sql_connection("shop"))
    mark = uuid.uuid4().hex[:8]
    async with running_worker(shop.project) as client:
        for number in range(6):
            story = await run_saga(client, f"{mark}-{number}", "500" if number == 0 else f"{number}.50")
            assert story["state"] == ("COMPENSATED" if number == 0 else "COMPLETED")
        await client.start("shop", {"total": "1", "stop": True}, id=f"{mark}-open")
        stopped = await client.start("shop", {"total": "1", "stop": True}, id=f"{mark}-stopped")
        await until(lambda: shop.held(f"{mark}-stopped") and shop.held(f"{mark}-open"))
        await shop.publish()
        for ok in (False, True):  # the reads of the first run are in the guard as well
            await client.start("checked", {"ok": ok}, id=f"{mark}-checked", again=ok)
            story = await finished(client, f"{mark}-checked", TIMEOUT)
            assert story["state"] == ("COMPLETED" if ok else "COMPENSATED")

        with monkeypatch.context() as terminal:
            terminal.setattr(type(sys.stderr), "isatty", lambda stream: True, raising=False)
            terminal.setenv("TERM", "xterm-256color")
            terminal.setenv("COLUMNS", "200")
            code, report = await shop.reconcile(capsys)
        assert (code, report["counts"]) == (0, {}), report
        for doing in (
            *("reading the sagas and the databases", "reading the topics", "comparing the sagas with the guards"),
            *("comparing shop.orders with the sagas that write it", "comparing the outboxes with the topics"),
            *("checking outputs, locks", "reading the sagas of 0 differences again"),
        ):
            assert doing in shop.shown, shop.shown
        assert report["read"]["sagas"] == 9
        assert report["read"]["records of topics"] == 10  # an order and a hold of each saga that is COMPLETED
        assert (shop.folder / ".saga" / "reconciled-until").exists()

        await client.temporal.get_workflow_handle(stopped.id).terminate("by hand")
        shop.sql(f"delete from orders where saga_id = '{mark}-1'")
        shop.sql("insert into orders (saga_id, total) values ('nobody', 7)")
        shop.sql(f"update orders set total = total + 1 where saga_id = '{mark}-2'")
        shop.sql(f"insert into orders (saga_id, total) select saga_id, total from orders where saga_id = '{mark}-3'")
        shop.sql(f"insert into held values ('{mark}-4', 'pear')")
        shop.sql(f"delete from saga_guard where saga_id = '{mark}-0' and op = 'undo'")
        shop.sql(f"delete from saga_guard where saga_id = '{mark}-5' and step = 'hold'")
        dropped, sent, start_and_kill_worker, unclaimed = (
            event_of(shop, f"{mark}-{number}", step)
            for number, step in ((0, "hold"), (3, "place"), (5, "hold"), (2, "place"))
        )
        shop.sql(f"update saga_outbox set status = 'HELD' where event_id = '{dropped}'")
        emit(shop, f"{mark}-1", "hold", "waits", "HELD", shop.holds)
        emit(shop, f"{mark}-1", "place", "lost", "PUBLISHED", shop.orders)
        emit(shop, f"{mark}-4", "never", "early", "NEW", shop.orders)
        shop.sql(f"delete from saga_outbox where event_id = '{unclaimed}'")
        [record] = [record for record in kafka.read_committed(shop.orders) if record.headers["ce_id"] == sent]
        kafka.produce(shop.orders, record.value, key=record.key, headers=record.headers)
        wanted = {
            "saga_without_effect": {f"{mark}-1", f"{mark}-5"},
            "effect_without_saga": {"nobody"},
            "amounts_differ": {f"{mark}-2"},
            "effect_applied_twice": {f"{mark}-3"},
            "reservation_unowned": {f"{mark}-4"},
            "effect_not_undone": {f"{mark}-0"},
            "event_without_effect": {f"{mark}-4", f"{mark}-5"},
            "event_missing": {f"{mark}-1"},
            "event_unclaimed": {f"{mark}-2"},
            "event_published_twice": {f"{mark}-3"},
        }
        page = tmp_path / "report.html"
        code, report = await shop.reconcile(capsys, "--report", str(page), "--repair", "--yes")
        assert code == 8
        assert {(repair["saga_id"], repair["class"], repair["done"]) for repair in report["repairs"]} == {
            (f"{mark}-stopped", "open_effects", "undone; it is COMPENSATED"),
            (f"{mark}-0", "event_held", "the held events of hold are dropped"),
            (f"{mark}-1", "event_held", "the held events of hold are released"),
        }
        assert classes(report) == wanted, report["findings"]
        assert not shop.held(f"{mark}-stopped")
        states = dict(shop.sql("select event_id, status from saga_outbox"))
        assert (states[dropped], states["waits"]) == ("DROPPED", "NEW")
        assert states[event_of(shop, f"{mark}-stopped", "hold")] == "DROPPED"
        assert [finding_of(report, event) for event in ("lost", "early", start_and_kill_worker, unclaimed, sent)] == [
            ("event_missing", "shop: update saga_outbox set status = 'NEW' where event_id = 'lost';"),
            ("event_without_effect", "shop: delete from saga_outbox where event_id = 'early';"),
            ("event_without_effect", f"saga show {mark}-5"),
            ("event_unclaimed", f"saga show {mark}-2"),
            ("event_published_twice", f"saga show {mark}-3"),
        ]
        differs = next(finding for finding in report["findings"] if finding["class"] == "amounts_differ")
        assert differs["command"].startswith("shop: update orders set total = '2.5' where order_id = ")
        text = page.read_text()
        assert "effect applied twice" in text
        assert f"topic: {shop.orders}" in text
        assert differs["command"] in text.replace("&#x27;", "'")


LOCKED = """
saga: locked
input: {type: object, properties: {key: {type: string}}}
locks: {keys: ["${{ input.key }}"], wait: 1h}
steps:
  - {id: hold, uses: hold, with: {sku: apple}, compensate: release}
  - {id: approval, uses: wait, with: {signal: approve}}
"""


@pytest.mark.slow
async def test_locks_that_nobody_releases_are_found_and_released(
    temporal: TemporalServer, server: DatabaseServer, kafka: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path / "project", server, temporal, kafka)
    (shop.folder / "locked.saga.yaml").write_text(LOCKED)
    with (shop.folder / "saga.toml").open("a") as settings_file:
        settings_file.write('\n[locks]\nconnection = "shop"\n')
    project = Project(load_settings(config=str(shop.folder / "saga.toml")))
    await set_up_database(project.settings.sql_connection("shop"))
    mark = uuid.uuid4().hex[:8]
    gone, stopped = f"{mark}-gone", f"{mark}-stopped"
    waiters = {f"{mark}-waits-for-gone": f"{mark}-1", f"{mark}-waits-for-stopped": f"{mark}-2"}

    async def lock_of(key: str) -> str | None:
        return next((lock.owner for lock in await list_locks(project.settings, [key])), None)

    engine = open_command_engine(project.settings.sql_connection("shop"))
    now = time.time()
    outcome = await LockTable("shop", engine).acquire(
        [f"{mark}-1"], owner=gone, holder=gone, workflow_id=gone, waits=True, scheduled_at=now, deadline=now + 30
    )
    await engine.dispose()
    assert outcome.kind == "done", outcome
    async with running_worker(project) as client:
        holder = await client.start("locked", {"key": f"{mark}-2"}, id=stopped)
        await until(lambda: shop.held(stopped))
        for id, key in waiters.items():
            await client.start("locked", {"key": key}, id=id)
        await until(lambda: shop.sql("select 1 from saga_lock_wait having count(*) = 2"))
        await client.temporal.get_workflow_handle(holder.id).terminate("by hand")
        over, kept = await check_locks(client.temporal, project.settings)
        assert (over.ok, over.help) == (False, "saga reconcile --repair")
        assert over.message.startswith(f"{gone} is over and holds ")
        assert (kept.ok, kept.help) == (False, f"saga resume {stopped}")
        assert kept.message.startswith(f"no run of {stopped} is open, and it holds ")

        code, report = await shop.reconcile(capsys)
        assert code == 8
        assert classes(report)["lock_left"] == {gone, stopped}
        assert {await lock_of(f"{mark}-1"), await lock_of(f"{mark}-2")} == {gone, stopped}, "nothing is changed"

        code, report = await shop.reconcile(capsys, "--repair", "--yes")
        done = {(repair["saga_id"], repair["class"]): repair["done"] for repair in report["repairs"]}
        assert done[gone, "lock_left"] == "its locks are released"
        assert done[stopped, "open_effects"] == "undone; it is COMPENSATED"
        assert done[stopped, "lock_left"] == "its locks have been released meanwhile", "its undo has released them"
        assert [await lock_of(key) for key in waiters.values()] == list(waiters)
        for id in waiters:
            await until(lambda id=id: shop.held(id))
            await client.signal(id, "approve")
            assert (await finished(client, id, TIMEOUT))["state"] == "COMPLETED"
        assert all(result.ok for result in await check_locks(client.temporal, project.settings))


@pytest.mark.slow
async def test_data_outside_the_window_is_ignored(
    temporal: TemporalServer, server: DatabaseServer, kafka: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path / "project", server, temporal, kafka)
    await set_up_database(shop.project.settings.sql_connection("shop"))
    mark = uuid.uuid4().hex[:8]
    async with running_worker(shop.project) as client:
        for number in range(3):
            await run_saga(client, f"{mark}-old-{number}", "1.50")
        await shop.publish()
        emit(shop, f"{mark}-old-0", "place", "lost before", "PUBLISHED", shop.orders)
        await asyncio.sleep(2.0)  # further apart than the margin of a floor
        began = time.time()
        window = ("--since", f"{datetime.fromtimestamp(began, UTC):%Y-%m-%dT%H:%M:%S.%f}+00:00")
        for number in range(3):
            await run_saga(client, f"{mark}-new-{number}", "2.50")
        await shop.publish()

        code, report = await shop.reconcile(capsys, *window)
        assert (code, report["counts"], report["read"]["records of topics"]) == (0, {}, 6), report
        assert records_since(shop, tmp_path / "window", began + READ_MARGIN) == 3  # and not those of the old ones
        code, report = await shop.reconcile(capsys)
        assert (code, report["counts"]) == (8, {"event_missing": 1})
        assert finding_of(report, "lost before")[0] == "event_missing"

        records = {record.headers["sagaid"]: record.offset for record in kafka.read_committed(shop.orders)}
        kafka.delete_records(shop.orders, before=min(at for id, at in records.items() if "-new-" in id))
        code, report = await shop.reconcile(capsys)
        assert (code, report["counts"]) == (0, {}), report
        assert report["read"]["records of topics"] == 3 + 6  # orders are left of the new ones alone

        emit(shop, f"{mark}-new-0", "place", "lost since", "PUBLISHED", shop.orders)
        code, report = await shop.reconcile(capsys, *window)
        assert (code, report["counts"]) == (8, {"event_missing": 1})
        class_, command = finding_of(report, "lost since")
        assert class_ == "event_missing"
        shop.sql(command.removeprefix("shop: "))
        await shop.publish()
        code, report = await shop.reconcile(capsys, *window)
        assert (code, report["counts"]) == (0, {}), report

        kafka.delete_topic(shop.holds)
        code, report = await shop.reconcile(capsys, *window)
        assert (code, report["counts"]) == (8, {"event_missing": 3}), report
        assert {finding["details"]["topic"] for finding in report["findings"]} == {shop.holds}


@pytest.mark.slow
async def test_a_step_is_refused_when_its_sides_differ(
    temporal: TemporalServer, server: DatabaseServer, kafka: Broker, tmp_path: Path
) -> None:
    shop = Shop(tmp_path / "project", server, temporal, kafka)
    await set_up_database(shop.project.settings.sql_connection("shop"))
    shop.sql("insert into orders (saga_id, total) values ('a', 1.50), ('b', 2.50), ('c', 3)")
    (shop.folder / "archive").mkdir()
    archive = pa.table({"saga_id": ["c", "a", "b"], "amount": [Decimal("3.0"), Decimal("1.5"), Decimal("2.6")]})
    pq.write_table(archive, shop.folder / "archive" / "1.parquet")
    async with running_worker(shop.project) as client:

        async def ask(**input: str) -> dict[str, Any]:
            run = await client.start("same", input, id=f"same-{uuid.uuid4()}")
            return await finished(client, run.id, TIMEOUT)

        story = await ask()
        assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "rejected"), story["reason"]
        assert story["reason"]["details"]["counts"]["differing"] == 1
        assert story["reason"]["details"]["samples"][0]["left"] == {"total": Decimal("2.50")}
        story = await ask(severity="warn")
        assert (story["state"], story["output"]["verdict"]) == ("COMPLETED", "different")
        story = await finished(client, await start_by_schedule(client, shop, tolerance="0.1"), TIMEOUT)
        assert (story["state"], story["output"]["verdict"]) == ("COMPLETED", "equal")
    stage = shop.folder / ".saga" / "spark" / "stage" / "reconcile"
    assert not any(stage.iterdir())


async def start_by_schedule(client: Client, shop: Shop, **input: str) -> str:
    """Do what `temporal schedule create` of the docs does, and trigger it at once; returns the id of the saga."""
    schedule = f"books-{uuid.uuid4()}"
    action = ScheduleActionStartWorkflow(
        "same", input, id=schedule, task_queue=shop.project.settings.temporal.task_queue
    )
    spec = ScheduleSpec(cron_expressions=["15 3 * * *"])
    handle = await client.temporal.create_schedule(schedule, Schedule(action=action, spec=spec))
    try:
        await handle.trigger()
        async with asyncio.timeout(LIMIT):
            while True:
                if actions := (await handle.describe()).info.recent_actions:
                    break
                await asyncio.sleep(0.1)
    finally:
        await handle.delete()
    started = actions[0].action
    assert isinstance(started, ScheduleActionExecutionStartWorkflow)
    return started.workflow_id
