"""`saga reconcile` of one saga on PostgreSQL in a process that can import no PySpark and finds no Java."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from saga_workers.runtime.databases import set_up_database
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.forked_commands import run_command
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer
from tests.helpers.run_changes import delete_run

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


def forbid_spark() -> None:
    """Let this process import no PySpark."""
    assert not {"pyspark", "py4j"} & sys.modules.keys()
    sys.modules["pyspark"] = sys.modules["py4j"] = cast(Any, None)


class Stall:
    """A project of one saga on a database of its own."""

    def __init__(self, folder: Path, url: str, address: str, saga: str, settings: str) -> None:
        self.folder, self.url = folder, url
        folder.mkdir()
        texts = {"ADDRESS": address, "QUEUE": f"stall-{uuid.uuid4()}", "URL": url}
        for name, text in texts.items():
            settings = settings.replace(name, text)
        for file, text in (("saga.toml", settings), ("stall.saga.yaml", saga), ("actions.py", ACTIONS)):
            (folder / file).write_text(text)
        self.project = Project(load_settings(config=str(folder / "saga.toml")))

    def sql(self, statement: str) -> None:
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(statement.encode())

    async def command(self, *arguments: str) -> tuple[int, Any]:
        done = await asyncio.to_thread(
            run_command,
            ["--config", str(self.folder / "saga.toml"), *arguments],
            self.folder,
            env={"PATH": "/nonexistent", "HOME": str(self.folder.parent)},
            first=forbid_spark,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)


ORDER_SAGA = """
saga: stall
input: {type: object, required: [total], properties: {total: {type: string}}}
steps:
  - id: place
    uses: sql
    with:
      connection: stall
      run: "insert into orders (saga_id, total) values (:id, :total) returning order_id, total"
      params: {id: "${{ saga.id }}", total: "${{ decimal(input.total) }}"}
    compensate: auto
"""

BY_RESULT = SETTINGS.replace('saga_id = "saga_id"', 'result = {order_id = "order_id"}')
KEY = "order_id int generated always as identity primary key"
ORDERS = f"create table orders ({KEY}, saga_id text, total numeric(12, 2))"


async def test_a_returned_row_is_the_result_that_a_row_is_linked_by(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    stall = Stall(tmp_path / "linked", new_database(postgres_server), temporal.address, ORDER_SAGA, BY_RESULT)
    stall.sql(ORDERS)
    await set_up_database(stall.project.settings.sql_connection("stall"))
    async with running_worker(stall.project) as client:
        for saga_id in ("linked-1", "linked-2"):
            await client.start("stall", {"total": "2.50"}, id=saga_id)
            assert (await finished(client, saga_id))["state"] == "COMPLETED"
        code, report = await stall.command("reconcile", "-o", "json")
        assert (code, report["counts"]) == (0, {}), report["findings"]
        code, report = await stall.command("reconcile", "linked-1", "-o", "json")
        assert (code, report["counts"]) == (0, {}), report["findings"]
        stall.sql("insert into orders (saga_id, total) values ('nobody', 1)")
        code, report = await stall.command("reconcile", "-o", "json")
        assert (code, report["counts"]) == (8, {"effect_without_saga": 1})
        assert report["findings"][0]["command"] == "stall: delete from orders where order_id = 3;"


async def test_a_declaration_that_matches_no_row_gives_no_advice_to_delete(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    settings = BY_RESULT.replace('{order_id = "order_id"}', '{total = "order_id"}')
    stall = Stall(tmp_path / "unlinked", new_database(postgres_server), temporal.address, ORDER_SAGA, settings)
    stall.sql(ORDERS)
    await set_up_database(stall.project.settings.sql_connection("stall"))
    async with running_worker(stall.project) as client:
        await client.start("stall", {"total": "2.50"}, id="unlinked-1")
        assert (await finished(client, "unlinked-1"))["state"] == "COMPLETED"
        code, report = await stall.command("reconcile", "-o", "json")
    assert (code, report["counts"]) == (8, {"effects_unmatched": 2})
    assert {finding["command"] for finding in report["findings"]} == {
        "stall: select * from orders where order_id = 1;",
        "saga show unlinked-1",
    }


WRONG_FIELD = "the result of the step place of stall has no field `number`, only order_id, total"
NO_ROWS = "the step place of stall returns no rows, so its result has no field `order_id`"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('{order_id = "order_id"}', '{number = "order_id"}', WRONG_FIELD),
        ('{total = "total"}', '{total = "number"}', WRONG_FIELD),
        ('step = "place"', 'step = "put"', "stall has no step `put`"),
        (" returning order_id, total", "", NO_ROWS),
    ],
)
async def test_a_declaration_that_the_definition_contradicts_is_refused(
    tmp_path: Path, old: str, new: str, why: str
) -> None:
    saga, settings = ORDER_SAGA.replace(old, new), BY_RESULT.replace(old, new)
    stall = Stall(tmp_path / "refused", "sqlite:///x.db", "127.0.0.1:1", saga, settings)
    code, diagnostics = await stall.command("validate", "-o", "json")
    (diagnostic,) = [each for each in diagnostics if each["code"] == "SAGA142"]
    assert (code, diagnostic["message"]) == (1, f"[[reconcile.effects]] orders: {why}")


async def test_one_saga_is_reconciled_without_java(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    stall = Stall(tmp_path / "stall", new_database(postgres_server), temporal.address, SAGA, SETTINGS)
    stall.sql("create table orders (order_id int generated always as identity, saga_id text, total numeric(12, 2))")
    await set_up_database(stall.project.settings.sql_connection("stall"))

    async def reconcile(saga_id: str) -> tuple[int, dict[str, Any]]:
        return await stall.command("reconcile", saga_id, "-o", "json")

    async with running_worker(stall.project) as client:
        for saga_id in ("stall-1", "stall-2"):
            await client.start("stall", {"total": "2.50"}, id=saga_id)
            assert (await finished(client, saga_id))["state"] == "COMPLETED"
        code, report = await reconcile("stall-1")
        assert (code, report["counts"], report["read"]["stall.guard"]) == (0, {}, 1)
        stall.sql("update orders set total = 2.51 where saga_id = 'stall-1'")
        stall.sql("delete from orders where saga_id = 'stall-2'")
        code, report = await reconcile("stall-1")
        assert (code, report["counts"]) == (8, {"amounts_differ": 1})
        (finding,) = report["findings"]
        assert finding["row"] == {"order_id": 1}
        assert (finding["details"]["total"], finding["details"]["expected.total"]) == ("2.51", "2.5")
        assert (
            finding["command"] == "stall: update orders set total = '2.5' where order_id = 1 and saga_id = 'stall-1';"
        )
        code, report = await reconcile("stall-2")
        assert (code, report["counts"]) == (8, {"saga_without_effect": 1})
    assert list((stall.folder / ".saga" / "reconcile").iterdir()) == []


@pytest.mark.slow
async def test_an_id_that_nobody_knows_is_refused(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    """A mistyped id would else be consistent for ever, although the rows of other sagas are read to compare one."""
    ledger = '\n[ledger]\nconnection = "stall"\n'
    stall = Stall(tmp_path / "known", new_database(postgres_server), temporal.address, ORDER_SAGA, BY_RESULT + ledger)
    stall.sql(ORDERS)
    await set_up_database(stall.project.settings.sql_connection("stall"))

    async def reconcile(saga_id: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = ["--config", str(stall.folder / "saga.toml"), *options, "-o", "json"]
        return await asyncio.to_thread(run_command, [*command[:2], "reconcile", saga_id, *command[2:]], stall.folder)

    async with running_worker(stall.project) as client:
        await client.start("stall", {"total": "2.50"}, id="known-1")
        assert (await finished(client, "known-1"))["state"] == "COMPLETED"
        assert (await reconcile("known-1")).returncode == 0
        for saga_id, *options in (["known-2"], ["known-2", "--repair", "--yes"], ["known"]):
            refused = await reconcile(saga_id, *options)
            assert (refused.returncode, refused.stdout) == (2, ""), refused
            assert f"there is no saga with the id {saga_id} in the namespace" in refused.stderr
        insert = "insert into saga_guard (saga_id, step, generation, op, reason, created_at) values"
        stall.sql(f"{insert} ('guarded-1', 'place', 1, 'do', 'do', extract(epoch from now()))")
        guarded = await reconcile("guarded-1")
        assert guarded.returncode == 8, guarded
        assert '"saga resume guarded-1"' in guarded.stdout
        stall.sql(f"{insert} ('guarded-1', 'place', 1, 'undo', 'undo', extract(epoch from now()))")
        assert (await reconcile("guarded-1")).returncode == 0
        stall.sql("insert into saga_lock (key, saga_id, acquired_at, holder) values ('k', 'locked-1', 1, 'locked-1')")
        assert (await reconcile("locked-1")).returncode == 8
        repaired = await reconcile("locked-1", "--repair", "--yes")
        assert repaired.returncode == 0, "the lock was the last trace of it"
        await delete_run(client.temporal, "known-1")
        stall.sql("delete from saga_guard where saga_id = 'known-1'")
        assert (await reconcile("known-1")).returncode == 0, "the ledger knows it"
        stall.sql("delete from saga_run where saga_id = 'known-1'")
        assert (await reconcile("known-1")).returncode == 2
