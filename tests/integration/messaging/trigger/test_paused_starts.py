"""Sagas that begin or are undone during a pause wait for its end, whatever has started them."""

from __future__ import annotations

import html
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from temporalio.client import ScheduleBackfill, ScheduleOverlapPolicy

from saga_activities import standing_pauses
from saga_activities.connections import open_engine
from saga_workers.client import Client
from sagas import enqueue
from sagas.project import Project
from sagas.protocol.schedule_order import schedule_id
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import RelayProcess, TemporalServer, TriggerProcess
from tests.helpers.waiting import until
from tests.integration.cli.conftest import CommandLine
from tests.integration.serve.served_console import TOKENS, serving

PAID = """
saga: NAME
input: {type: object, required: [order], properties: {order: {type: string}}}
triggers:
  kafka: {topic: TOPIC, id: "${{ trigger.value.order }}"BULK}
SCHEDULE
steps:
  - id: pay
    uses: sql
    with: {connection: shop, run: "insert into payment (order_id) values (:id)", params: {id: "${{ input.order }}"}}
    compensate:
      uses: sql
      with: {connection: shop, run: "delete from payment where order_id = :id", params: {id: "${{ input.order }}"}}
"""
SCHEDULE = '  schedule: {cron: "0 3 1 1 *", id: "ORDER", input: {order: "ORDER"}}'


@pytest.mark.parametrize("order", ["--connection", "--saga"])
async def test_all_that_starts_and_undoes_waits_and_ends_once(
    kafka: Broker,
    postgres_server: DatabaseServer,
    temporal: TemporalServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    order: str,
) -> None:
    monkeypatch.setattr(standing_pauses, "MAX_AGE", 0.0)
    mark, database = uuid.uuid4().hex[:8], new_database(postgres_server)
    names, topics = (f"paid-{mark}", f"paid-together-{mark}"), (kafka.create_topic(), kafka.create_topic())
    for name, topic, bulk, schedule in zip(names, topics, ("", ", bulk: {wait: 200ms}"), (SCHEDULE, ""), strict=True):
        definition = PAID.replace("SCHEDULE", schedule.replace("ORDER", f"{mark}-scheduled"))
        for word, value in (("NAME", name), ("TOPIC", topic), ("BULK", bulk)):
            definition = definition.replace(word, value)
        (tmp_path / f"{name}.saga.yaml").write_text(definition)
    (tmp_path / "saga.toml").write_text(
        f'definitions = ["."]\n[temporal]\naddress = "{temporal.address}"\ntask_queue = "{mark}"\n'
        f'[connections.shop]\nurl = "{database}"\n[ledger]\nconnection = "shop"\n[enqueue]\nconnections = ["shop"]\n'
        f'[kafka]\nbootstrap_servers = "{kafka.address}"\nprefix = "{mark}"\noutbox = "shop"\n'
    )

    def paid() -> list[tuple[Any, ...]]:
        with psycopg.connect(database) as connection:
            return connection.execute("select order_id from payment order by order_id").fetchall()

    with psycopg.connect(database) as connection:
        connection.execute("create table payment (order_id text)")
    project = Project(load_settings(config=str(tmp_path / "saga.toml")))
    async with running_worker(project) as client:
        cli = CommandLine(tmp_path, capsys, client)
        made = await cli.saga("setup")
        assert made.code == 0, made
        older = f"{mark}-older"
        await client.start(names[0], {"order": older}, id=older)

        async def ended(saga_id: str, state: str) -> bool:
            return (await client.show(saga_id))["state"] == state

        await until(lambda: ended(older, "COMPLETED"))
        what = (order, {"--connection": "shop", "--saga": names[0]}[order])
        paused = await cli.saga("pause", *what, "--reason", "a stocktaking", "--as", "kim")
        assert paused.code == 0, paused

        expected = [f"{mark}-event", f"{mark}-scheduled", f"{mark}-enqueued", f"{mark}-asked"]
        kafka.produce(topics[0], {"order": expected[0]})
        together = [f"{mark}-{number}" for number in range(3)] if order == "--connection" else []
        kafka.produce(topics[1], *({"order": each} for each in together))
        slot = datetime(2026, 1, 1, 3, tzinfo=UTC)
        await client.temporal.get_schedule_handle(schedule_id(mark, names[0])).backfill(
            ScheduleBackfill(slot, slot, overlap=ScheduleOverlapPolicy.ALLOW_ALL)
        )
        engine = open_engine("shop", database, 1)
        async with AsyncSession(engine) as session:
            await enqueue(session, names[0], {"order": expected[2]}, id=expected[2])
            await session.commit()
        await engine.dispose()
        await _start_over_http(client, monkeypatch, names[0], expected[3])
        with TriggerProcess("trigger", tmp_path), RelayProcess("relay", tmp_path):
            undo = await cli.saga("undo", older, "--reason", "a mistake", "--timeout", "1s", "--yes")
            assert undo.code == 7, undo  # it goes on, and so does the pause
            count = len(expected) + len(together) + 1

            async def waiting() -> int:
                holds = (await cli.saga("--json", "report", "--since", "1h")).json["holds"]
                return holds[0]["sagas"]

            async def all_wait() -> bool:
                return await waiting() == count

            await until(all_wait)
            assert paid() == [(older,)]
            assert f"a stocktaking; {count} sagas wait for it" in (await cli.saga("list", "--stuck")).err
            await _see_messages_on_the_board(client, monkeypatch, topics[0])
            held = await cli.saga("pause", older, "--reason", "ask first")  # the undo, which has a run of its own
            assert held.code == 0, held
            resumed = await cli.saga("resume", *what)
            assert (resumed.code, (await cli.saga("resume", *what)).code) == (0, 9), resumed
            for saga_id in (*expected, *together):
                await until(lambda saga_id=saga_id: ended(saga_id, "COMPLETED"))
            assert paid() == sorted((each,) for each in (older, *expected, *together))
            assert (await cli.saga("resume", older)).code == 0
            await until(lambda: ended(older, "COMPENSATED"))
            assert paid() == sorted((each,) for each in (*expected, *together))


async def _start_over_http(client: Client, monkeypatch: pytest.MonkeyPatch, name: str, saga_id: str) -> None:
    """Twice: who waits for the end is told that there is none yet."""
    for token, value in TOKENS.items():
        monkeypatch.setenv(token, value)
    sent = {"input": {"order": saga_id}, "id": saga_id, "wait": "300ms"}
    headers = {"Authorization": f"Bearer {TOKENS['SHOP']}"}
    async with serving(client, starts=True) as url, httpx.AsyncClient(base_url=url, timeout=60) as caller:
        answers = [await caller.post(f"/sagas/{name}", json=sent, headers=headers) for _ in range(2)]
    documents = [answer.json() for answer in answers]
    assert [answer.status_code for answer in answers] == [202, 202], documents
    assert [(each["started"], each["outcome"]) for each in documents] == [(True, None), (False, None)]


async def _see_messages_on_the_board(client: Client, monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    """The board of the console tells of the outbox, and how far the triggers have read."""
    for name, value in TOKENS.items():
        monkeypatch.setenv(name, value)
    async with serving(client) as url, httpx.AsyncClient(base_url=url, timeout=60, headers={"Origin": url}) as browser:
        await browser.post("/console/sign-in", data={"token": TOKENS["STAFF"]})

        async def shown() -> str | None:
            board = html.unescape((await browser.get("/console")).text)
            return board if "Incoming: " in board else None

        board = await until(shown)
    assert "✔ Outgoing events of shop: 0 wait to be published" in board
    assert topic in board
