"""`saga reconcile` of one saga on PostgreSQL in a process that can import no PySpark and finds no Java."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import psycopg

from saga_workers.runtime.databases import set_up_database
from sagas.settings import load_settings
from sagas.settings.project import Project
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer

ACTIONS = """
from __future__ import annotations

from decimal import Decimal

from sagas import Step, action


@action("place", connection="stall")
async def place(step: Step, total: Decimal) -> dict:
    row = await step.sql.one(
        "insert into orders (saga_id, total) values (:id, :total) returning order_id", id=step.saga_id, total=total)
    return {"order_id": row.order_id, "total": total}


@action("remove", connection="stall")
async def remove(step: Step, total: Decimal) -> None:
    await step.sql.execute("delete from orders where saga_id = :id", id=step.saga_id)
"""

SAGA = """
saga: stall
input: {type: object, required: [total], properties: {total: {type: string}}}
steps:
  - {id: place, uses: place, with: {total: "${{ input.total }}"}, compensate: remove}
"""

SETTINGS = """
definitions = ["."]
actions = ["./actions.py"]

[temporal]
address = "ADDRESS"
task_queue = "QUEUE"

[connections.stall]
url = "URL"

[[reconcile.effects]]
connection = "stall"
table = "orders"
key = "order_id"
saga = "stall"
step = "place"
saga_id = "saga_id"
amounts = {total = "total"}
"""

WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = sys.modules["py4j"] = None
from saga_cli.main import run
sys.exit(run(sys.argv[1:]))
"""


async def test_one_saga_is_reconciled_without_java(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    folder, url = tmp_path / "stall", new_database(postgres_server)
    folder.mkdir()
    texts = {"ADDRESS": temporal.address, "QUEUE": f"stall-{uuid.uuid4()}", "URL": url}
    settings = SETTINGS
    for name, text in texts.items():
        settings = settings.replace(name, text)
    for file, text in (("saga.toml", settings), ("stall.saga.yaml", SAGA), ("actions.py", ACTIONS)):
        (folder / file).write_text(text)

    def orders(statement: str) -> None:
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(statement.encode())

    orders("create table orders (order_id int generated always as identity, saga_id text, total numeric(12, 2))")
    project = Project(load_settings(config=str(folder / "saga.toml")))
    await set_up_database(project.settings.sql_connection("stall"))

    async def reconcile(saga_id: str) -> tuple[int, dict[str, Any]]:
        command = [sys.executable, "-P", "-c", WITHOUT_SPARK, "--config", str(folder / "saga.toml")]
        done = await asyncio.to_thread(
            subprocess.run,
            [*command, "reconcile", saga_id, "-o", "json"],
            env={"PATH": "/nonexistent", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    async with running_worker(project) as client:
        for saga_id in ("stall-1", "stall-2"):
            await client.start("stall", {"total": "2.50"}, id=saga_id)
            assert (await finished(client, saga_id))["state"] == "COMPLETED"
        code, report = await reconcile("stall-1")
        assert (code, report["counts"], report["read"]["stall.guard"]) == (0, {}, 1)
        orders("update orders set total = 2.51 where saga_id = 'stall-1'")
        orders("delete from orders where saga_id = 'stall-2'")
        code, report = await reconcile("stall-1")
        assert (code, report["counts"]) == (8, {"amounts_differ": 1})
        (finding,) = report["findings"]
        assert finding["row"] == {"order_id": 1}
        assert (finding["details"]["total"], finding["details"]["expected.total"]) == ("2.510000000", "2.500000000")
        assert finding["command"] == "stall: update orders set total = 2.5 where order_id = 1;"
        code, report = await reconcile("stall-2")
        assert (code, report["counts"]) == (8, {"saga_without_effect": 1})
    assert list((folder / ".saga" / "reconcile").iterdir()) == []
