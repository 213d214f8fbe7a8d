"""With `[codec]` neither tables nor Temporal nor dead letters have an `x-sensitive` value in clear, in any form.

What the topics of events have, their consumers read; what texts have, `test_canaries.py` reads.
"""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from saga_activities.connections import open_engine
from saga_workers.client import Client
from saga_workers.location.traces import recorded_effects
from sagas.project import Project
from sagas.protocol.payloads import BATCH_WORKFLOW, BULK_WORKFLOW, NOTIFICATION_WORKFLOW
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.forked_commands import run_command
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import finished
from tests.helpers.new_databases import new_database, new_mariadb_database
from tests.helpers.processes import RelayProcess, TemporalServer, TriggerProcess, WorkerProcess
from tests.helpers.waiting import until, until_in_thread
from tests.integration.trust.test_encrypted_values import ACTIONS, CARD, MARKS, TOKENS, everything, new_key, tables

SETTINGS = """
definitions = ["."]
actions = ["./actions.py"]
[temporal]
address = "{address}"
task_queue = "{prefix}"
[connections.shop]
url = "{shop}"
[connections.lite]
url = "{lite}"
[connections.maria]
url = "{maria}"
[ledger]
connection = "shop"
[enqueue]
connections = ["shop"]
[kafka]
bootstrap_servers = "{kafka}"
outbox = "shop"
prefix = "{prefix}"
[codec]
key = {{file = "codec.key"}}
outbox = true
dead_letters = true
"""
INPUT = """
input:
  type: object
  properties:
    card: {type: object, x-sensitive: true, properties: {name: {type: string}, pin: {type: integer}}}
"""
CHARGE = "{id: a, uses: cards.charge, with: {card: '${{ input.card }}'}, compensate: cards.refund}"
DEFINITIONS = {
    "images": f"""
steps:
  - {CHARGE}
  - id: b
    uses: sql
    compensate: auto
    with:
      connection: shop
      run: {{sql: "update bills set name = :name", params: {{name: "${{{{ input.card.name }}}}"}}}}
output: "${{{{ input.card }}}}"
""",
    "declines": f"""
steps: [{CHARGE}, {{id: b, uses: cards.decline, with: {{card: '${{{{ input.card }}}}'}}, effect: none}}]
""",
    "holds": f"""
steps:
  - {CHARGE}
  - {{id: b, uses: kafka.publish, with: {{topic: TOPIC, key: k, value: '${{{{ input.card }}}}', hold: true}}}}
  - id: locks
    uses: sql
    compensate: auto
    with:
      connection: shop
      run: {{sql: "insert into orders values (1, :name)", params: {{name: "${{{{ input.card.name }}}}"}}}}
  - {{id: c, uses: wait, with: {{signal: approved}}}}
""",
    "sides": f"""
steps:
  - id: lite
    uses: sql
    compensate: auto
    with: {{connection: lite, run: "update bills set name = :name", params: {{name: "${{{{ input.card.name }}}}"}}}}
  - id: maria
    uses: sql
    compensate: auto
    with: {{connection: maria, run: "update bills set name = :name", params: {{name: "${{{{ input.card.name }}}}"}}}}
  - {CHARGE}
""",
    "nested": """
notify:
  - {when: [completed], uses: cards.say, with: {card: '${{ input.card }}'}}
steps:
  - {id: each, for_each: '${{ [input.card] }}', uses: cards.say, with: {card: '${{ item }}'}, effect: none}
  - {id: child, uses: saga, with: {name: triggered, input: {card: '${{ input.card }}'}}}
""",
    "publishes": "steps: [{id: a, uses: kafka.publish, with: {topic: TOPIC, value: '${{ input.card }}'}, pivot: true}]",
    "asks": """
steps:
  - {id: a, uses: kafka.request, with: {topic: TOPIC, reply_topic: TOPIC-replies, value: '${{ input.card }}'},
     compensate: {uses: cards.refund, with: {card: null}}}
""",
    "triggered": """
triggers: {kafka: {topic: TOPIC-events}}
steps: [{id: a, uses: cards.say, with: {card: '${{ input.card }}'}, effect: none}]
""",
}
NOTE = "merkmal-4711"
PLAIN = """
saga: plain
input: {type: object, properties: {note: {type: string}}}
steps: [{id: a, uses: cards.charge, with: {card: "${{ input.note }}"}, compensate: cards.refund}]
"""
"""A saga whose input is not marked: Temporal and the tables of participants have it encrypted as well."""


def forms() -> Iterator[bytes]:
    """The marks as they are, and in base64 at each of its three offsets."""
    for mark in MARKS:
        yield mark
        for offset in range(3):
            encoded = base64.b64encode(b"\0" * offset + mark)
            yield encoded[(0, 2, 3)[offset] : len(encoded) - (len(mark) + offset) % 3 - 1]


@pytest.fixture
def temporal(tmp_path: Path) -> Iterator[TemporalServer]:
    """A server of this test, whose file is read."""
    with TemporalServer(tmp_path / "temporal") as server:
        yield server


async def bills(url: str) -> None:
    engine = open_engine("bills", url, 1)
    async with engine.begin() as connection:
        await connection.execute(text("create table bills (id int primary key, name varchar(100))"))
        await connection.execute(text("insert into bills values (1, '')"))
    await engine.dispose()


def content_of(folder: Path, pattern: str) -> bytes:
    return b"".join(file.read_bytes() for file in folder.glob(pattern))


async def engine_tables(kind: str, url: str) -> dict[str, bytes]:
    """The rows of the engine's tables, as :func:`tables` has them, with the kind of the database before their names."""
    query = "show tables like 'saga%'" if kind == "MariaDB" else "select name from sqlite_master where type = 'table'"
    engine = open_engine("dump", url, 1)
    dumped = {}
    async with engine.connect() as connection:
        for name in (await connection.execute(text(query))).scalars().all():
            rows = (await connection.execute(text(f"select * from {name}"))).all() if name.startswith("saga") else []
            dumped[f"{kind}: {name}"] = b"\n".join(
                each if isinstance(each, bytes) else str(each).encode() for row in rows for each in row
            )
    await engine.dispose()
    return dumped


async def test_no_store_has_a_sensitive_value_in_clear(
    tmp_path: Path,
    temporal: TemporalServer,
    postgres_server: DatabaseServer,
    mariadb_server: DatabaseServer,
    kafka: Broker,
) -> None:
    prefix, url = f"stored-{uuid.uuid4().hex[:8]}", new_database(postgres_server)
    lite, maria = f"sqlite:///{tmp_path / 'lite.db'}", await new_mariadb_database(mariadb_server)
    for database_url in (url, lite, maria):
        await bills(database_url)
    for topic in ("", "-replies", "-events"):
        kafka.create_topic(prefix + topic)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as database:
        database.execute("create table orders (id int primary key, name text)")
    for name, steps in DEFINITIONS.items():
        definition = f"saga: {name}{INPUT}{steps}".replace("TOPIC", prefix)
        (tmp_path / f"{name}.saga.yaml").write_text(definition, encoding="utf-8")
    (tmp_path / "plain.saga.yaml").write_text(PLAIN, encoding="utf-8")
    (tmp_path / "actions.py").write_text(ACTIONS, encoding="utf-8")
    (tmp_path / "codec.key").write_text(new_key(), encoding="utf-8")
    settings = SETTINGS.format(
        address=temporal.address, prefix=prefix, shop=url, lite=lite, maria=maria, kafka=kafka.address
    )
    (tmp_path / "saga.toml").write_text(settings, encoding="utf-8")
    assert (done := run_command(["setup"], tmp_path)).returncode == 0, done
    project = Project(load_settings(config=str(tmp_path / "saga.toml")))
    stores: dict[str, bytes] = {}
    with (
        WorkerProcess("worker", tmp_path, env=TOKENS),
        RelayProcess("relay", tmp_path),
        TriggerProcess("trigger", tmp_path),
    ):
        async with await Client.connect(project) as client:
            started = [name for name in DEFINITIONS if name != "triggered"]
            runs = {name: (await client.start(name, {"card": CARD}, id=f"{name}-{prefix}")).id for name in started}
            runs["plain"] = (await client.start("plain", {"note": NOTE}, id=f"plain-{prefix}")).id
            kafka.produce(f"{prefix}-events", {"card": {**CARD, "pin": "kanari-pin"}}, key="kanari-key")

            def token() -> Any:
                query = "select reply_token from saga_request where token is not null"
                with psycopg.connect(url.replace("+psycopg", "")) as database:
                    row = database.execute(query).fetchone()
                return row and row[0]

            headers = {"sagakey": f"{runs['asks']}/a", "sagaoutcome": "done", "sagatoken": await until(token)}
            kafka.produce(f"{prefix}-replies", {"card": CARD}, key="k", headers=headers)
            with psycopg.connect(url.replace("+psycopg", "")) as database:
                row = "insert into saga_enqueued (saga, saga_id, input) values ('triggered', %s, %s)"
                database.execute(row, [f"enqueued-{prefix}", json.dumps({"card": CARD})])
            runs["enqueued"] = f"enqueued-{prefix}"
            file = tmp_path / "rows.jsonl"
            file.write_text(f"{json.dumps({'card': CARD})}\n" * 2)
            words = ["start", "declines", "--from", str(file), "--bulk", "--batch", prefix]
            batch = await asyncio.to_thread(run_command, words, tmp_path)
            assert "2 started" in batch.stdout, batch
            await until(lambda: b"enqueued" not in tables(url)["saga_enqueued"])
            states = {name: (await finished(client, runs[name]))["state"] for name in runs if name != "holds"}
            assert set(states.values()) == {"COMPLETED", "COMPENSATED"}, states
            await until(lambda: tables(url)["saga_outbox_row"].count(b"HELD") == 1)
            await until_in_thread(lambda: f"{prefix}-events.dlq" in kafka.topics())
            letters = await until_in_thread(lambda: kafka.read_committed(f"{prefix}-events.dlq"))
            stores["dead letters"] = b"\n".join(f"{letter.key}".encode() + letter.value for letter in letters)
            held = await client.pause(runs["holds"], reason=f"{CARD['name']} is asked", who="mia")
            assert held.paused is not None
            undo = ["undo", runs["images"], "--reason", f"{CARD['name']} does not want it", "--yes"]
            assert (undone := await asyncio.to_thread(run_command, undo, tmp_path)).returncode == 0, undone
            ended = [id for name, id in runs.items() if name != "holds"]
            await until(lambda: all(id.encode() in tables(url)["saga_run"] for id in ended))
            await until(lambda: tables(url)["saga_row_lock"] != b"")
            async for run in client.temporal.list_workflows():  # also of the batch, the notification and the undo
                handle = client.temporal.get_workflow_handle(run.id, run_id=run.run_id)
                events = [everything(event) for event in (await handle.fetch_history()).events]
                described = everything((await handle.describe()).raw_description)
                stores[f"Temporal: {run.workflow_type} {run.id}"] = b"".join([*events, described])
            stores["Temporal's file"] = content_of(tmp_path / "temporal", "*.db*")
    stores |= tables(url) | await engine_tables("MariaDB", maria) | await engine_tables("SQLite", lite)
    types = {name.split()[1] for name in stores if name.startswith("Temporal: ")}
    assert types >= {*DEFINITIONS, BATCH_WORKFLOW, BULK_WORKFLOW, NOTIFICATION_WORKFLOW}, types
    leaks = {f"{form!r} in {name}" for name, data in stores.items() for form in forms() if form in data}
    assert leaks == set()
    in_clear = {name for name, data in stores.items() if NOTE.encode() in data}
    assert {name for name in in_clear if not name.startswith("saga_run")} == set()  # which has the view of the saga
    [effect] = await recorded_effects(project.settings, runs["plain"])
    assert effect.origin is not None
    assert effect.origin.input == {"note": NOTE}
    (tmp_path / "codec.key").write_text(new_key(), encoding="utf-8")
    [effect] = await recorded_effects(load_settings(config=str(tmp_path / "saga.toml")), runs["plain"])
    assert effect.origin is not None
    assert (effect.origin.saga, effect.origin.input) == ("plain", None)
    assert "which [codec] key does not have" in (effect.origin.unreadable or "")
    for name in (
        *("saga_guard", "saga_image", "saga_request", "saga_outbox_row", "saga_run", "dead letters"),
        *("MariaDB: saga_guard", "MariaDB: saga_image", "SQLite: saga_guard", "SQLite: saga_image"),
    ):
        assert b"saga:encrypted" in stores[name], name
