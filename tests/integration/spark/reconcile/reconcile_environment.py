"""A small shop to reconcile: sagas, a database with an outbox, and its topics."""

from __future__ import annotations

import asyncio
import json
import textwrap
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest

from saga_cli import main
from saga_workers.client import Client
from saga_workers.relay.relay_process import run_relay
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import finished
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer

TIMEOUT = "400s"

SCHEMA = """
create table if not exists orders (order_id bigint generated always as identity primary key, saga_id text,
    total numeric(12,2) not null);
create table if not exists held (saga_id text not null, sku text not null, primary key (saga_id, sku));
create table if not exists noted (id int);
"""

ACTIONS = """
from __future__ import annotations

from decimal import Decimal

from sagas import Rejected, Step, action


@action("hold", connection="shop", holds=True)
async def hold(step: Step, sku: str) -> None:
    await step.sql.execute("insert into held values (:id, :sku)", id=step.saga_id, sku=sku)
    step.emit("TOPIC-holds", key=sku, value={"saga": step.saga_id}, hold=True)


@action("release", connection="shop")
async def release(step: Step, sku: str) -> None:
    await step.sql.execute("delete from held where saga_id = :id", id=step.saga_id)


@action("place", connection="shop")
async def place(step: Step, total: Decimal) -> dict:
    if total > 100:
        raise Rejected("too much")
    row = await step.sql.one(
        "insert into orders (saga_id, total) values (:id, :total) returning order_id", id=step.saga_id, total=total)
    await step.sql.execute("delete from held where saga_id = :id", id=step.saga_id)
    step.emit("TOPIC-orders", key=step.saga_id, value={"order": row.order_id})
    return {"order_id": row.order_id, "total": total}


@action("remove", connection="shop")
async def remove(step: Step, total: Decimal) -> None:
    await step.sql.execute("delete from orders where saga_id = :id", id=step.saga_id)
"""

SHOP = """
saga: shop
input: {type: object, required: [total], properties: {total: {type: string}, stop: {type: boolean, default: false}}}
steps:
  - {id: hold, uses: hold, with: {sku: apple}, compensate: release}
  - {id: approval, if: "${{ input.stop }}", uses: wait, with: {signal: approve}}
  - {id: place, uses: place, with: {total: "${{ input.total }}"}, compensate: remove}
"""

CHECKED = """
saga: checked
input: {type: object, properties: {ok: {type: boolean, default: false}}}
steps:
  - {id: look, uses: sql, with: {connection: shop, run: select 1 as x}, effect: none}
  - id: note
    uses: sql
    with: {connection: shop, run: insert into noted values (1)}
    check: {uses: sql, with: {connection: shop, run: select 1 as x}}
    compensate: {uses: sql, with: {connection: shop, run: delete from noted}}
  - {id: gate, uses: require, with: {that: "${{ input.ok }}"}}
"""

SAME = """
saga: same
input:
  type: object
  properties: {severity: {type: string, default: error}, tolerance: {type: string, default: "0"}}
steps:
  - id: same
    uses: reconcile
    with:
      left: {connection: shop, query: "select saga_id, total from orders"}
      right: {parquet: "archive/*.parquet"}
      key: [saga_id]
      mapping: {total: amount}
      tolerance: ${{ input.tolerance }}
      severity: ${{ input.severity }}
output: {verdict: "${{ steps.same.result.verdict }}", counts: "${{ steps.same.result.counts }}"}
"""

SETTINGS = """
definitions = ["."]
actions = ["./actions.py"]

[temporal]
address = "{address}"
task_queue = "{queue}"

[connections.shop]
url = "{url}"
schema = "schema.sql"

[spark]
ledger = "shop"
master = "local[1]"
[spark.conf]  # a handful of rows: what would make large queries fast takes longer here than it saves
"spark.sql.shuffle.partitions" = "1"
"spark.sql.adaptive.enabled" = "false"
"spark.ui.enabled" = "false"
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"spark.sql.codegen.wholeStage" = "false"
"spark.sql.codegen.factoryMode" = "NO_CODEGEN"

[kafka]
bootstrap_servers = "{kafka}"
prefix = "{topic}"
retention = "1d"

[[reconcile.effects]]
connection = "shop"
table = "orders"
key = "order_id"
saga = "shop"
step = "place"
saga_id = "saga_id"
amounts = {{total = "total"}}

[[reconcile.effects]]
connection = "shop"
table = "held"
key = ["saga_id", "sku"]
step = "hold"
saga_id = "saga_id"
holds = true
"""


class Shop:
    """A project on disk with a database, topics and a task queue of its own."""

    def __init__(self, folder: Path, server: DatabaseServer, temporal: TemporalServer, kafka: Broker) -> None:
        self.folder, self.kafka, self.shown = folder, kafka, ""
        name = f"reconcile_{uuid.uuid4().hex[:12]}"
        self.orders, self.holds = (kafka.create_topic(f"{name}-{topic}") for topic in ("orders", "holds"))
        self.url = new_database(server)
        folder.mkdir()
        for file, text in (
            ("shop.saga.yaml", SHOP),
            ("same.saga.yaml", SAME),
            ("checked.saga.yaml", CHECKED),
            ("actions.py", ACTIONS.replace("TOPIC", name)),
            ("schema.sql", SCHEMA),
        ):
            (folder / file).write_text(textwrap.dedent(text))
        queue = f"reconcile-{uuid.uuid4()}"
        more = {"kafka": kafka.address, "topic": name}
        (folder / "saga.toml").write_text(SETTINGS.format(address=temporal.address, queue=queue, url=self.url, **more))
        self.project = Project(load_settings(config=str(folder / "saga.toml")))

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """The rows, if the statement has any."""
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as connection:
            done = connection.execute(text.encode())
            return done.fetchall() if done.description else []

    def held(self, saga_id: str) -> bool:
        return bool(self.sql(f"select 1 from held where saga_id = '{saga_id}'"))

    async def publish(self) -> None:
        """`saga relay --once`."""
        await run_relay(self.project.settings, once=True, stop=asyncio.Event())

    async def reconcile(self, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
        """`saga reconcile`, in a thread: it has an event loop of its own, and the worker needs this one.

        ``shown`` is what it has written to standard error.
        """
        capsys.readouterr()
        command = ["--config", str(self.folder / "saga.toml"), "reconcile", "-o", "json", *words]
        code = await asyncio.to_thread(main.run, command)
        reported = capsys.readouterr()
        self.shown = reported.err
        assert "Traceback" not in reported.err
        assert reported.out, reported.err
        return code, json.loads(reported.out)


async def run_saga(client: Client, id: str, total: str) -> dict[str, Any]:
    await client.start("shop", {"total": total}, id=id)
    return await finished(client, id, TIMEOUT)
