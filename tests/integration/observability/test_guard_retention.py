"""The guards are purged below the oldest saga that is still needed: a real PostgreSQL, a real Temporal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from saga_activities.connections import DatabaseConnections
from saga_activities.guard import watermark
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.guard import Guard
from saga_activities.guard.schema import create_tables
from saga_activities.guard.sql_session import SqlSession
from saga_workers.client import Client
from saga_workers.doctor import checks
from saga_workers.doctor.doctor_result import DoctorResult
from saga_workers.runtime.logs import record_context
from saga_workers.stuck.continuation import continue_saga
from saga_workers.stuck.resumption import start_again
from saga_workers.temporal import server_time
from saga_workers.temporal.server_time import ServerTime
from saga_workers.temporal.temporal_client import start_headers
from saga_workers.temporal.temporal_runs import describe_run
from saga_workers.worker.earlier_starts import has_begun_before
from saga_workers.worker.guard_retention import HORIZON_MARGIN, GuardRetention, longest_attempt, retention_horizon
from saga_workers.worker.plugin import SagaPlugin
from sagas import action
from sagas.protocol.origin import decode_origin, encode_origin
from sagas.protocol.payloads import (
    BULK_MEMO,
    DEFINITION_HEADER,
    OUTCOME_MEMO,
    RESUMED_HEADER,
    SIGNATURE_HEADER,
    STARTED_AT_MEMO,
)
from sagas.settings import SqlConnection
from tests.helpers import eager_start
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer, WorkerProcess
from tests.helpers.run_changes import delete_run, reset_run
from tests.helpers.waiting import LIMIT, until
from tests.integration.observability.shop import make_shop

Shop = tuple[Client, DatabaseConnections]
DAY = 24 * 3600.0

RESERVE = """
saga: undoable
steps:
  - id: reserve
    uses: stock.take
    compensate: stock.give_back
"""

PIVOT = """
saga: final
steps:
  - id: pay
    uses: stock.take
    pivot: true
    timeout: 2m
"""

WAITING = """
saga: waiting
steps:
  - id: reserve
    uses: stock.take
    compensate: stock.give_back
  - id: approval
    uses: wait
    with: {signal: approve}
"""


LONG = """
saga: long
input: {type: object, required: [numbers]}
steps:
  - id: look
    uses: stock.look
    effect: none
    for_each: ${{ input.numbers }}
    with: {number: "${{ item }}"}
  - id: approval
    uses: wait
    with: {signal: approve}
"""


@action("stock.look")
async def look(number: int) -> int:
    return number


@action("stock.take", connection="shop")
async def take() -> None:
    """Nothing but the guard's rows matters here."""


@action("stock.give_back", connection="shop")
async def give_back() -> None:
    """Nothing but the guard's rows matters here."""


@contextlib.asynccontextmanager
async def open_shop(temporal: TemporalServer, server: DatabaseServer, folder: Path) -> AsyncIterator[Shop]:
    """A worker, its client, and its own database: the watermark applies to all of its sagas."""
    url = new_database(server).replace("postgresql://", "postgresql+psycopg://")
    connections = DatabaseConnections([SqlConnection(name="shop", url_setting=url)], pool_size=3)
    await create_tables(connections.engine("shop"))
    project = make_project(
        folder / "project",
        {"undoable": RESERVE, "final": PIVOT, "waiting": WAITING},
        [take, give_back],
        address=temporal.address,
        connections={"shop": url},
    )
    async with running_worker(project) as client:
        yield client, connections
    await connections.close()


@pytest.fixture
async def shop(temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path) -> AsyncIterator[Shop]:
    async with open_shop(temporal, postgres_server, tmp_path) as shop:
        yield shop


@pytest.fixture
async def quiet_shop(postgres_server: DatabaseServer, tmp_path: Path) -> AsyncIterator[Shop]:
    """With a Temporal of its own: in the shared one the sagas of other tests would be the oldest."""
    server = TemporalServer(tmp_path / "temporal")
    server.start()
    try:
        async with open_shop(server, postgres_server, tmp_path) as shop:
            yield shop
    finally:
        server.kill()


def upkeep(shop: Shop, *, retention: float = 30 * DAY) -> GuardRetention:
    client, connections = shop
    return GuardRetention(client.locator, connections, retention=retention, longest_transaction=lambda: 0.2)


async def old_do(guard: Guard, saga: str, at: float) -> str:
    """An attempt that Temporal scheduled at ``at``; the kind of its outcome."""

    async def effect(_: SqlSession) -> None:
        return None

    outcome = await guard.do(EntryKey(saga, "reserve"), "h", effect, scheduled_at=at, deadline=time.time() + 10)
    return outcome.kind


async def remembered(connections: DatabaseConnections) -> set[str]:
    async with connections.engine("shop").connect() as connection:
        return set((await connection.execute(text("select distinct saga_id from saga_guard"))).scalars())


async def test_old_sagas_are_purged_and_later_attempts_are_late(shop: Shop) -> None:
    _, connections = shop
    guard, now = connections.guard("shop"), time.time()
    assert await old_do(guard, "ancient", now - 40 * DAY) == "done"
    assert await old_do(guard, "recent", now - 20 * DAY) == "done"

    [done] = await upkeep(shop).run_once()
    assert done.sagas == 1
    assert abs(await watermark.read(connections.engine("shop")) - (now - 30 * DAY)) < 60
    assert await remembered(connections) == {"recent"}

    assert await old_do(guard, "ancient", now - 40 * DAY) == "late"  # a delivery that was on its way for 40 days
    assert await old_do(guard, "another", now - 31 * DAY) == "late"
    assert await remembered(connections) == {"recent"}  # refused, and nothing written
    assert await old_do(guard, "recent", now - 20 * DAY) == "done"  # its stored result


async def test_a_waiting_saga_holds_back_the_watermark(quiet_shop: Shop) -> None:
    client, connections = quiet_shop
    run = await client.start("waiting", {}, id=f"waiting-{uuid.uuid4()}")
    began = await begin_of(client, run.id)
    await seen(client, run.id)
    await old_do(connections.guard("shop"), "ancient", began - HORIZON_MARGIN - 60)
    await old_do(connections.guard("shop"), "hour-before", began - HORIZON_MARGIN + 60)
    # As if it were long ago: without retention only the oldest saga decides.
    assert await upkeep(quiet_shop, retention=0.0).run_once()
    assert abs(await watermark.read(connections.engine("shop")) - (began - HORIZON_MARGIN)) < 1.0
    assert {"hour-before", run.id} <= await remembered(connections)
    assert "ancient" not in await remembered(connections)
    await client.signal(run.id, "approve")
    assert (await finished(client, run.id))["state"] == "COMPLETED"


async def test_only_undoable_sagas_hold_back_the_watermark(quiet_shop: Shop) -> None:
    client, _ = quiet_shop
    final = await client.start("final", {}, id=f"final-{uuid.uuid4()}")
    await final.result()
    await seen(client, final.id, "Completed")
    assert await retention_horizon(client.locator, before=time.time() + 1) is None

    undoable = await client.start("undoable", {}, id=f"undoable-{uuid.uuid4()}")
    await undoable.result()
    await seen(client, undoable.id, "Completed")
    began = await begin_of(client, undoable.id)
    assert await retention_horizon(client.locator, before=time.time() + 1) == pytest.approx(began, abs=0.001)
    assert await retention_horizon(client.locator, before=began - 1) is None


async def test_a_terminated_saga_holds_back_the_watermark_until_it_is_undone(quiet_shop: Shop) -> None:
    client, _ = quiet_shop
    id = f"waiting-{uuid.uuid4()}"
    await client.start("waiting", {}, id=id)
    await waits(client, id)
    began = await begin_of(client, id)
    await client.temporal.get_workflow_handle(id).terminate("a test")
    await seen(client, id, "Terminated")
    assert await retention_horizon(client.locator, before=time.time() + 1) == pytest.approx(began, abs=0.001)
    assert await continue_saga(client.locator, id, "ada") == "undone; it is COMPENSATED"

    async def is_free() -> bool:
        return await horizon(client) is None

    await until(is_free)


@pytest.mark.slow
async def test_a_continued_saga_counts_from_its_first_run(tmp_path: Path) -> None:
    server = TemporalServer(tmp_path / "temporal", extra=["limit.historyCount.suggestContinueAsNew=40"])
    server.start()
    try:
        project = make_project(tmp_path / "project", {"long": LONG}, [look], address=server.address)
        plugin = SagaPlugin(project)
        async with running_worker(project, plugin=plugin) as client:
            run = await client.start("long", {"numbers": list(range(40))}, id=f"long-{uuid.uuid4()}")
            handle = client.temporal.get_workflow_handle(run.id, run_id=run.run_id)
            first = (await handle.describe()).start_time.timestamp()
            async with asyncio.timeout(LIMIT):
                while await begin_of(client, run.id) == first:  # noqa: ASYNC110 - another process knows
                    await asyncio.sleep(0.1)
            await seen(client, run.id)
            assert await retention_horizon(client.locator, before=time.time() + 1) == pytest.approx(first, abs=1.0)
            assert await begin_of(client, run.id) > first
            await client.signal(run.id, "approve")
            assert (await finished(client, run.id))["state"] == "COMPLETED"
            seconds = time.time() - first
    finally:
        server.kill()
    counted: Counter[str] = Counter()
    for metric in plugin.metrics.collect():
        for sample in metric.samples:
            counted[sample.name] += sample.value  # pyright: ignore[reportArgumentType]
    # Several runs are one saga, and it took as long as all of them.
    assert counted["saga_started_total"] == counted["saga_finished_total"] == 1
    assert counted["saga_duration_seconds_sum"] == pytest.approx(seconds, abs=2.0)


async def test_a_worker_starts_with_a_retention_round(temporal: TemporalServer, tmp_path: Path) -> None:
    project = await make_shop(tmp_path / "shop", temporal)
    connections = DatabaseConnections([SqlConnection(name="shop", url_setting=project.settings.connection("shop").url)])
    engine = connections.engine("shop")
    worker = WorkerProcess("worker", tmp_path / "shop", options=("--retention", "90d")).start()
    try:
        async with asyncio.timeout(LIMIT):
            while not await watermark.read(engine):  # noqa: ASYNC110 - another process raises it
                await asyncio.sleep(0.1)
        assert await watermark.read(engine) == pytest.approx(time.time() - 90 * DAY, abs=60)
        assert worker.stop() == 0  # it does not wait for the round to end
    finally:
        worker.kill()
        await connections.close()


async def begin_of(client: Client, saga_id: str) -> float:
    return (await client.temporal.get_workflow_handle(saga_id).describe()).start_time.timestamp()


async def seen(client: Client, saga_id: str, status: str = "Running") -> None:
    """Wait until visibility has caught up."""
    query = f"WorkflowId = '{saga_id}' AND ExecutionStatus = '{status}'"
    async with asyncio.timeout(LIMIT):
        while (await client.temporal.count_workflows(query)).count == 0:  # noqa: ASYNC110 - another process knows
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("days", [60, 800])
async def test_a_worker_whose_clock_is_ahead_purges_nothing_early(
    shop: Shop, days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watermark in the future would end every saga as late until then."""
    client, connections = shop
    real, now = time.time, time.time()
    assert await old_do(connections.guard("shop"), "recent", now - 20 * DAY) == "done"
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: real() + days * DAY)
        await upkeep(shop).run_once()
        by_server = await ServerTime(client.temporal).now()
    assert by_server is not None
    assert abs(by_server - real()) < 60.0
    assert await watermark.read(connections.engine("shop")) < real() - 29 * DAY
    assert "recent" in await remembered(connections)
    assert await old_do(connections.guard("shop"), "new", real()) == "done"


async def test_nothing_is_purged_without_the_time_of_the_server(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def unknown(_: object) -> None:
        return None

    _, connections = shop
    monkeypatch.setattr(server_time, "measure_server_clock", unknown)
    assert await old_do(connections.guard("shop"), "ancient", time.time() - 40 * DAY) == "done"
    assert await upkeep(shop).run_once() == []
    assert "ancient" in await remembered(connections)
    assert "nothing is purged by age" in caplog.text


async def test_the_doctor_names_a_watermark_in_the_future_and_the_way_out(shop: Shop) -> None:
    client, connections = shop
    connection = client.project.settings.connection("shop")
    assert isinstance(connection, SqlConnection)
    engine = connections.engine("shop")
    assert not [result for result in await checked(connection) if result.check == "watermark of shop"]
    await watermark.raise_to(engine, time.time() + 30 * DAY)
    assert await old_do(connections.guard("shop"), "refused", time.time()) == "late"
    [result] = [result for result in await checked(connection) if result.check == "watermark of shop"]
    assert not result.ok
    assert "in the future" in result.message
    assert result.help is not None
    async with engine.connect() as opened:
        await opened.execute(text(result.help.partition("run there: ")[2]))
    assert await old_do(connections.guard("shop"), "accepted", time.time() + 10) == "done"
    assert await old_do(connections.guard("shop"), "purged", time.time() - DAY) == "late"


async def checked(connection: SqlConnection) -> list[DoctorResult]:
    return await checks._check_database(connection, spark=False, two_phase=False)


async def test_concurrent_retention_rounds_are_safe(shop: Shop) -> None:
    _, connections = shop
    for number in range(20):
        await old_do(connections.guard("shop"), f"ancient-{number}", time.time() - 40 * DAY)
    await asyncio.gather(upkeep(shop).run_once(), upkeep(shop).run_once())
    assert not {row for row in await remembered(connections) if row.startswith("ancient")}


async def test_an_unreachable_database_is_logged_once(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    client, _ = shop
    down = DatabaseConnections([SqlConnection(name="shop", url_setting="postgresql+psycopg://saga@127.0.0.1:1/shop")])
    with caplog.at_level(logging.WARNING, "saga.upkeep"):
        assert await GuardRetention(client.locator, down, longest_transaction=lambda: 0.0).run_once() == []
    [record] = [record for record in caplog.records if record.name == "saga.upkeep"]
    assert record.getMessage().startswith("guard table not purged: ")
    assert record_context(record) == {"connection": "shop"}
    assert record.exc_info is None


async def test_the_retention_covers_the_longest_attempt(shop: Shop) -> None:
    client, _ = shop
    assert longest_attempt(client.project.definitions.values()) == 120.0 + 60.0
    assert watermark.RETENTION == 30 * DAY


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("can_undo", [False, True])
async def test_a_saga_that_a_stranger_has_closed_keeps_its_rows(quiet_shop: Shop, can_undo: bool) -> None:
    """Anybody can take a workflow task of the project and close the saga with any view; it may be one to undo."""
    client, _ = quiet_shop
    queue, id = client.project.settings.temporal.task_queue, f"closed-{uuid.uuid4()}"
    view = {"id": id, "saga": "undoable", "state": "COMPLETED", "steps": [], "can_undo": can_undo}
    started = await eager_start.start(
        client.temporal, "undoable", id, queue, eager_start.json_payload({}), {}, eager=True
    )
    forged = [eager_start.upsert_memo(OUTCOME_MEMO, view), eager_start.upsert_memo(STARTED_AT_MEMO, 4e12)]
    await eager_start.complete_first_task(client.temporal, started, [*forged, eager_start.complete()])
    began = (await client.temporal.get_workflow_handle(id).describe()).start_time.timestamp()
    assert await until(lambda: horizon(client)) == pytest.approx(began, abs=0.001)


async def test_a_start_with_a_later_time_in_its_memo_hides_no_open_saga(quiet_shop: Shop) -> None:
    client, _ = quiet_shop
    handle = await client.temporal.start_workflow(
        "waiting",
        {},
        id=f"waiting-{uuid.uuid4()}",
        task_queue=client.project.settings.temporal.task_queue,
        memo={STARTED_AT_MEMO: time.time() + DAY},
    )
    began = (await handle.describe()).start_time.timestamp()
    assert await until(lambda: horizon(client)) == pytest.approx(began, abs=0.001)


@pytest.mark.parametrize("queue", ["own", "billing"])
async def test_a_start_with_an_earlier_time_in_its_memo_keeps_no_rows(quiet_shop: Shop, queue: str) -> None:
    """A run that stays open for ever would end every purge."""
    client, _ = quiet_shop
    handle = await client.temporal.start_workflow(
        "waiting" if queue == "own" else "anything",
        {},
        id=f"waiting-{uuid.uuid4()}",
        task_queue=client.project.settings.temporal.task_queue if queue == "own" else queue,
        memo={STARTED_AT_MEMO: 0, BULK_MEMO: "bulk~of-nobody"},
    )
    began = (await handle.describe()).start_time.timestamp()
    assert await until(lambda: horizon(client)) == pytest.approx(began, abs=0.001)
    await handle.terminate("a test")


async def test_a_resumed_saga_keeps_the_rows_of_its_deleted_run(quiet_shop: Shop) -> None:
    """The new run goes on with effects that are older than its run, and may have to undo them."""
    client, connections = quiet_shop
    id = f"waiting-{uuid.uuid4()}"
    await client.start("waiting", {}, id=id)
    await waits(client, id)
    await delete_run(client.temporal, id)
    async with connections.engine("shop").begin() as opened:
        stored = (await opened.execute(text("select origin from saga_guard where saga_id = :id"), {"id": id})).scalar()
        origin = decode_origin(str(stored))
        old = encode_origin(replace(origin, started_at=origin.started_at - 40 * DAY))
        change = "update saga_guard set created_at = created_at - :age, origin = :origin where saga_id = :id"
        await opened.execute(text(change), {"age": 40 * DAY, "origin": old, "id": id})
    await start_again(client, await client.locator.locate(id), not_ended=True)
    await waits(client, id)
    await seen(client, id)
    began = origin.started_at - 40 * DAY
    assert await retention_horizon(client.locator, before=time.time()) == pytest.approx(began, abs=0.001)
    assert await upkeep(quiet_shop).run_once()
    assert id in await remembered(connections)
    assert await client.cancel(id) == "accepted"
    assert (await finished(client, id))["state"] == "COMPENSATED"


async def test_a_saga_that_was_reset_counts_from_its_start(quiet_shop: Shop) -> None:
    """The run of the reset is listed with a later time, and goes on with the effects of the one before it."""
    client, id = quiet_shop[0], f"waiting-{uuid.uuid4()}"
    await client.start("waiting", {}, id=id)
    await waits(client, id)
    first = await client.temporal.get_workflow_handle(id).describe()
    await asyncio.sleep(1.5)
    reset = await reset_run(client.temporal, id)
    await delete_run(client.temporal, id, first.run_id)
    await waits(client, id)
    began = first.start_time.timestamp()
    assert await until(lambda: horizon(client)) == pytest.approx(began, abs=0.5)
    assert (info := await describe_run(client.temporal, id, reset)) is not None
    assert not await has_begun_before(
        client.temporal, info.run, began - DAY, client.locator.keys
    )  # as a memo may claim


async def test_a_forged_header_of_a_resumed_saga_keeps_no_rows(quiet_shop: Shop) -> None:
    client, _ = quiet_shop
    resumed = {"started_at": 0, "generations": {}, "undone": []}
    with start_headers({RESUMED_HEADER: resumed, DEFINITION_HEADER: {}, SIGNATURE_HEADER: "forged"}):
        handle = await client.temporal.start_workflow(
            "waiting",
            {},
            id=f"waiting-{uuid.uuid4()}",
            task_queue=client.project.settings.temporal.task_queue,
            memo={STARTED_AT_MEMO: 0},
        )
    keys = client.locator.keys
    assert keys is not None
    info = await describe_run(client.temporal, handle.id)
    assert info is not None
    assert not await has_begun_before(client.temporal, info.run, 0.0, keys)


async def waits(client: Client, id: str) -> None:
    async def is_there() -> bool:
        if (await client.locator.locate(id)).kind == "unknown":
            return False
        return any(step["id"] == "approval" and step["state"] == "RUNNING" for step in (await client.show(id))["steps"])

    await until(is_there)


async def horizon(client: Client) -> float | None:
    return await retention_horizon(client.locator, before=time.time() + 1)
