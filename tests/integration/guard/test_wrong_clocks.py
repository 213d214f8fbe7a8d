"""Rows are deleted and retried by the clock of their database, whatever the clock of the process says."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from temporalio.client import Client as Temporal

from saga_activities.database_clock import time_of
from saga_activities.enqueued.tables import create_tables
from saga_activities.guard import watermark
from saga_activities.guard.sql_session import SqlSession
from saga_activities.ledger import audit, circuit_breakers, claims, pauses
from saga_activities.ledger.records import NewClaim
from saga_activities.ledger.schema import create_ledger
from saga_activities.messaging import inbox, kafka_request
from saga_activities.messaging.outbox import insert_events
from saga_spark import output_records
from saga_spark.manifest import Target
from saga_spark.settings import SparkSettings
from saga_spark.staging.stage_clean_up import SagaLiveness, clean_up_stage
from saga_workers.enqueued.enqueued_table import EnqueuedTable
from saga_workers.enqueued.row_decisions import drop_row
from saga_workers.relay.check_back import CheckBack
from saga_workers.relay.outbox_table import OutboxTable, read_lag
from saga_workers.relay.shard import make_reader
from sagas.actions.events import Event
from sagas.errors import SagaError
from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation
from sagas.settings import Settings, SqlConnection
from sagas.settings.enqueue import EnqueueSettings
from tests.integration.guard.conftest import GuardDatabase, clock, new_address
from tests.integration.guard.test_outbox_rows import rows as rows
from tests.integration.ledger.test_shared_circuit_breakers import CALL, DOWN, attempt, worker

pytestmark = pytest.mark.sampled(turns="guard_database")
DAY = 86_400.0


@pytest.fixture(params=[DAY, -DAY], ids=["ahead", "behind"])
def wrong_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds by which the clock of this process is wrong."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + request.param)
    return request.param


async def emit(database: GuardDatabase, *, hold: bool = False) -> None:
    address = new_address()
    guard = GuardSpec("shop", holds=True)
    invocation = Invocation("emit", {}, str(address), address.saga_id, address.entry, "do", 1, guard=guard)

    async def act(sql: SqlSession | None) -> None:
        assert sql is not None
        await insert_events(sql, [Event("a", "k", 1, hold=hold)], invocation)

    outcome = await database.guard.do(address, "h", act, **clock())
    assert outcome.kind == "done", outcome.failure


async def test_events_have_the_time_of_the_database(
    guard_database: GuardDatabase, rows: OutboxTable, wrong_clock: float
) -> None:
    await emit(guard_database)
    now = await time_of(guard_database.engine)
    [[created]] = await guard_database.rows("select created_at from saga_outbox")
    assert abs(created - now) < 60
    if guard_database.engine.dialect.name != "postgresql":  # where the time is that of the reader's progress
        [shard] = (await read_lag(rows.engine)).by_status["NEW"]
        reader = make_reader(rows.engine, shard)
        await reader.begin()
        portion = await reader.read(10)
        assert await reader.record(portion, portion.rows) == 1
        [[published]] = await guard_database.rows("select published_at from saga_outbox")
        assert abs(published - now) < 60


async def test_a_held_event_is_asked_about_in_time(
    guard_database: GuardDatabase, rows: OutboxTable, wrong_clock: float
) -> None:
    await emit(guard_database, hold=True)

    async def unreachable() -> Temporal:
        raise SagaError("not there")

    async with guard_database.engine.begin() as connection:
        await connection.execute(text("update saga_outbox set created_at = created_at - 3600 where status = 'HELD'"))
    checking = CheckBack(unreachable)
    await checking.check(guard_database.guard)
    [[following]] = await guard_database.rows("select next_check_at from saga_outbox")
    assert following is not None
    assert 0 < following - await time_of(guard_database.engine) < 7_200


async def test_a_dropped_row_is_kept_for_the_retention(
    guard_database: GuardDatabase, tmp_path: Path, wrong_clock: float
) -> None:
    engine = guard_database.engine
    await create_tables(engine)
    settings = Settings(
        root=tmp_path,
        connections={"shop": SqlConnection(name="shop", url_setting=guard_database.url)},
        enqueue=EnqueueSettings(connections=("shop",)),
    )
    table = EnqueuedTable(engine)
    async with engine.connect() as connection:
        await connection.execute(text("insert into saga_enqueued (saga) values ('checkout'), ('checkout')"))
        [first, second] = (await connection.execute(text("select id from saga_enqueued order by id"))).scalars()
    await drop_row(settings, None, first, reason="test", who="test")
    await drop_row(settings, None, second, reason="test", who="test")
    async with engine.connect() as connection:
        old = text("update saga_enqueued set dropped_at = dropped_at - 7200 where id = :id")
        await connection.execute(old, {"id": first})
    await table.purge(3600.0)
    assert await guard_database.rows("select id from saga_enqueued") == [(second,)]
    await guard_database.rows("delete from saga_enqueued")


async def test_a_new_claim_is_not_old(guard_database: GuardDatabase, wrong_clock: float) -> None:
    engine = guard_database.engine
    await create_ledger(engine)
    claim = await claims.claim_single(engine, NewClaim("t-1", "digest", {}), saga="transfer")
    assert claim.made_at is not None
    try:
        assert abs(claim.made_at.timestamp() - await time_of(engine)) < 60
        assert await claims.oldest_single_claims(engine, timedelta(hours=1), 10) == []
        assert await claims.oldest_single_claims(engine, timedelta(hours=-1), 10) == ["t-1"]
    finally:
        await claims.release_single(engine, "t-1", at=claim.made_at)
    assert await claims.oldest_single_claims(engine, timedelta(hours=-1), 10) == []


async def test_a_forget_is_recorded_when_it_begins(guard_database: GuardDatabase, wrong_clock: float) -> None:
    engine = guard_database.engine
    await create_ledger(engine)
    saga_id, now = "forgotten-1", await time_of(engine)
    records = await audit.begin_forgetting(engine, [saga_id], who="ada", reason=None, not_before=None)
    since = datetime.fromtimestamp(now, UTC) - timedelta(minutes=1)
    try:
        assert await audit.is_forgetting(engine, saga_id, since)
        assert not await audit.is_forgetting(engine, saga_id, since + timedelta(minutes=2))
    finally:
        await audit.withdraw_forgetting(engine, records)
    later = since + timedelta(hours=1)
    records = await audit.begin_forgetting(engine, [saga_id], who="ada", reason=None, not_before=later)
    assert await audit.is_forgetting(engine, saga_id, later)
    await audit.withdraw_forgetting(engine, records)


async def test_a_message_is_not_old_when_it_is_received(guard_database: GuardDatabase, wrong_clock: float) -> None:
    async def receive(sql: SqlSession | None) -> None:
        assert sql is not None
        await inbox.record(sql, inbox.InboxRow("shop", "m-1", "orders", "t", 0, 1, "digest"), "DONE")

    engine = guard_database.engine
    now = await time_of(engine)
    await inbox.purge(engine, now + 3600)  # what other tests have left
    outcome = await guard_database.guard.run_probe(new_address(), receive, **clock())
    assert outcome.kind == "done", outcome.failure
    assert await inbox.purge(engine, now - 3600) == 0
    assert await inbox.purge(engine, now + 3600) == 1


async def test_a_reply_is_recorded_at_the_time_of_the_database(
    guard_database: GuardDatabase, wrong_clock: float
) -> None:
    key = new_address()
    row = {"step_key": str(key), **key.values, "op": "do", "created_at": 0.0, "reply_topic": None, "reply_token": None}

    async def request(sql: SqlSession | None) -> None:
        assert sql is not None
        await kafka_request.lock_request(sql, row)

    outcome = await guard_database.guard.run_probe(key, request, **clock())
    assert outcome.kind == "done", outcome.failure
    reply = kafka_request.Reply(str(key), "done", "1", "replies")
    assert (await kafka_request.record_reply(guard_database.engine, reply))[0]
    [[at]] = await guard_database.rows("select answered_at from saga_request where step_key = :key", key=str(key))
    assert abs(at - await time_of(guard_database.engine)) < 60


async def test_a_staged_output_is_kept_for_the_retention(
    guard_database: GuardDatabase, tmp_path: Path, wrong_clock: float
) -> None:
    engine, target = guard_database.engine, Target(f"s-{new_address().saga_id}", "facts", 1)
    settings = SparkSettings(stage=(tmp_path / "stage").as_uri(), retention=3600.0)
    await output_records.create_table(engine)
    await guard_database.rows("delete from saga_output")  # what other tests have left
    async with engine.begin() as connection:
        await output_records.take_over(connection, target, saga="day", place="a.b", spec={}, together=False)
    await guard_database.rows("update saga_output set state = 'PUBLISHED'")

    async def unknown(_: str) -> SagaLiveness:
        return "unknown"

    assert await clean_up_stage(engine, settings, unknown) == []
    await guard_database.rows("update saga_output set updated_at = updated_at - 7200")
    assert [row.target for row in await clean_up_stage(engine, settings, unknown)] == [target]
    assert await clean_up_stage(engine, settings, unknown) == []
    [[cleaned]] = await guard_database.rows("select cleaned_at from saga_output")
    assert abs(cleaned - await time_of(engine)) < 60
    await guard_database.rows("delete from saga_output")


async def test_a_pause_begins_now_and_is_asked_about_soon(guard_database: GuardDatabase, wrong_clock: float) -> None:
    engine = guard_database.engine
    await create_ledger(engine)
    assert await pauses.begin_pause(engine, "connection", "bank", who="ada", reason=None)
    try:
        [pause] = await pauses.read_pauses(engine)
        assert abs(datetime.fromisoformat(pause.at).timestamp() - await time_of(engine)) < 60
        assert 0 <= pause.age < 60
    finally:
        await pauses.end_pause(engine, "connection", "bank")


async def test_a_circuit_breaker_opens_now_and_its_turn_is_claimed_once(
    guard_database: GuardDatabase, wrong_clock: float
) -> None:
    engine = guard_database.engine
    await create_ledger(engine)
    failing = worker(engine)
    await attempt(failing, DOWN)
    await attempt(failing, DOWN)
    [breaker] = await circuit_breakers.read_breakers(engine)
    try:
        assert abs(breaker.opened_at.timestamp() - await time_of(engine)) < 60
        assert -1 < breaker.age < 60
        assert not await circuit_breakers.claim_probe(engine, "crm", 60.0)
        held = await worker(engine).admit(CALL, 1, 30.0)
        assert isinstance(held, Outcome)
        assert held.retry_after is not None
        assert held.retry_after < 10
    finally:
        await circuit_breakers.close_breaker(engine, breaker)


async def test_a_watermark_is_raised_now(guard_database: GuardDatabase, wrong_clock: float) -> None:
    engine = guard_database.engine
    await watermark.raise_to(engine, await watermark.read(engine) + 0.001)
    [[raised]] = await guard_database.rows("select raised_at from saga_watermark")
    assert abs(raised - await time_of(engine)) < 60
