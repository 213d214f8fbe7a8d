"""`saga reconcile` over real sagas: clean books agree; what is spoiled by hand is named; what is safe is mended."""

from __future__ import annotations

import asyncio
import json
import textwrap
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli import main
from sagas.project import Project
from sagas.settings import load_settings
from tests.integration.engine.world import until
from tests.lab import finished, lab
from tests.processes import TemporalServer
from tests.servers import DatabaseServer
from workers.client import Client
from workers.databases import set_up

PATIENCE = "400s"

SCHEMA = """
create table if not exists orders (order_id bigint generated always as identity primary key, saga_id text,
    total numeric(12,2) not null);
create table if not exists held (saga_id text not null, sku text not null, primary key (saga_id, sku));
"""

ACTIONS = """
from __future__ import annotations

from decimal import Decimal

from sagas import Rejected, Step, action


@action("hold", connection="shop")
async def hold(step: Step, sku: str) -> None:
    await step.sql.execute("insert into held values (:id, :sku)", id=step.saga_id, sku=sku)


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
conf = {{"spark.ui.enabled" = "false", "spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"}}

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
    """A project on disk with a database and a task queue of its own."""

    def __init__(self, folder: Path, server: DatabaseServer, temporal: TemporalServer) -> None:
        self.folder = folder
        name = f"reconcile_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(server.url().replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(f"create database {name}")  # pyright: ignore[reportArgumentType]
        self.url = server.url(name)
        folder.mkdir()
        for file, text in (
            ("shop.saga.yaml", SHOP),
            ("same.saga.yaml", SAME),
            ("actions.py", ACTIONS),
            ("schema.sql", SCHEMA),
        ):
            (folder / file).write_text(textwrap.dedent(text))
        queue = f"reconcile-{uuid.uuid4()}"
        (folder / "saga.toml").write_text(SETTINGS.format(address=temporal.address, queue=queue, url=self.url))
        self.project = Project(load_settings(config=str(folder / "saga.toml")))

    def sql(self, text: str) -> None:
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(text)  # pyright: ignore[reportArgumentType]

    async def reconcile(self, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
        """`saga reconcile`, in a thread: it has an event loop of its own, and the worker needs this one."""
        capsys.readouterr()
        command = ["--config", str(self.folder / "saga.toml"), "reconcile", "-o", "json", *words]
        code = await asyncio.to_thread(main.run, command)
        told = capsys.readouterr()
        assert "Traceback" not in told.err
        assert told.out, told.err
        return code, json.loads(told.out)


async def play(client: Client, id: str, total: str) -> dict[str, Any]:
    await client.start("shop", {"total": total}, id=id)
    return await finished(client, id, PATIENCE)


def classes(report: dict[str, Any]) -> dict[str, set[Any]]:
    found: dict[str, set[Any]] = {}
    for one in report["findings"]:
        found.setdefault(one["class"], set()).add(one["saga_id"])
    return found


async def test_spoiled_books_are_named_and_mended(
    temporal: TemporalServer, server: DatabaseServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path / "project", server, temporal)
    await set_up(shop.project.settings.connection("shop"))
    mark = uuid.uuid4().hex[:8]
    async with lab(shop.project) as client:
        for number in range(6):
            story = await play(client, f"{mark}-{number}", "500" if number == 0 else f"{number}.50")
            assert story["state"] == ("COMPENSATED" if number == 0 else "COMPLETED")
        await client.start("shop", {"total": "1", "stop": True}, id=f"{mark}-open")
        stopped = await client.start("shop", {"total": "1", "stop": True}, id=f"{mark}-stopped")
        await until(lambda: held(shop, f"{mark}-stopped") and held(shop, f"{mark}-open"))

        code, report = await shop.reconcile(capsys)
        assert (code, report["counts"]) == (0, {}), report
        assert report["read"]["sagas"] == 8
        assert (shop.folder / ".saga" / "reconciled-until").exists()

        await client.temporal.get_workflow_handle(stopped.id).terminate("by hand")
        shop.sql(f"delete from orders where saga_id = '{mark}-1'")
        shop.sql("insert into orders (saga_id, total) values ('nobody', 7)")
        shop.sql(f"update orders set total = total + 1 where saga_id = '{mark}-2'")
        shop.sql(f"insert into orders (saga_id, total) select saga_id, total from orders where saga_id = '{mark}-3'")
        shop.sql(f"insert into held values ('{mark}-4', 'pear')")
        shop.sql(f"delete from saga_guard where saga_id = '{mark}-0' and op = 'undo'")
        shop.sql(f"delete from saga_guard where saga_id = '{mark}-5' and step = 'hold'")
        wanted = {
            "saga_without_effect": {f"{mark}-1", f"{mark}-5"},
            "effect_without_saga": {"nobody"},
            "amounts_differ": {f"{mark}-2"},
            "effect_applied_twice": {f"{mark}-3"},
            "reservation_unowned": {f"{mark}-4"},
            "effect_still_there": {f"{mark}-0"},
        }
        page = tmp_path / "report.html"
        code, report = await shop.reconcile(capsys, "--report", str(page), "--repair", "--yes")
        assert code == 8
        assert [(one["saga_id"], one["class"]) for one in report["mended"]] == [(f"{mark}-stopped", "open_effects")]
        assert classes(report) == wanted, report["findings"]
        assert not held(shop, f"{mark}-stopped")
        differs = next(one for one in report["findings"] if one["class"] == "amounts_differ")
        assert differs["command"].startswith("shop: update orders set total = 2.5 where order_id = ")
        text = page.read_text()
        assert "effect applied twice" in text
        assert differs["command"] in text.replace("&#x27;", "'")


def held(shop: Shop, saga_id: str) -> bool:
    with psycopg.connect(shop.url.replace("+psycopg", "")) as connection:
        return connection.execute("select 1 from held where saga_id = %s", [saga_id]).fetchone() is not None


@pytest.mark.slow
async def test_a_step_is_refused_when_its_sides_differ(
    temporal: TemporalServer, server: DatabaseServer, tmp_path: Path
) -> None:
    shop = Shop(tmp_path / "project", server, temporal)
    await set_up(shop.project.settings.connection("shop"))
    shop.sql("insert into orders (saga_id, total) values ('a', 1.50), ('b', 2.50), ('c', 3)")
    (shop.folder / "archive").mkdir()
    archive = pa.table({"saga_id": ["c", "a", "b"], "amount": [Decimal("3.0"), Decimal("1.5"), Decimal("2.6")]})
    pq.write_table(archive, shop.folder / "archive" / "1.parquet")
    async with lab(shop.project) as client:

        async def ask(**input: str) -> dict[str, Any]:
            run = await client.start("same", input, id=f"same-{uuid.uuid4()}")
            return await finished(client, run.id, PATIENCE)

        story = await ask()
        assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "rejected"), story["reason"]
        assert story["reason"]["details"]["counts"]["differing"] == 1
        assert story["reason"]["details"]["samples"][0]["left"] == {"total": "2.50"}
        story = await ask(severity="warn")
        assert (story["state"], story["output"]["verdict"]) == ("COMPLETED", "different")
        story = await ask(tolerance="0.1")
        assert (story["state"], story["output"]["verdict"]) == ("COMPLETED", "equal")
    stage = shop.folder / ".saga" / "spark" / "stage" / "reconcile"
    assert not any(stage.iterdir())
