"""The workers die while a catalog commits a joint publication table by table: reconcile finds it, it is completed."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import threading
import time
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import DecimalType
from temporalio.client import Client as Temporal

from saga_spark.reconcile.extracts import ReconciliationScope
from saga_spark.reconcile.findings import repair_command
from saga_spark.settings import spark_settings
from saga_workers.client import Client
from saga_workers.reconcile.reconcile_input import ReconcileInput
from saga_workers.reconcile.reconciliation import _check_outputs
from saga_workers.temporal.temporal_client import HeaderInterceptor
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.forked_commands import run_command
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until_in_thread
from tests.integration.spark.day_close_project import ICEBERG, open_day_close_project, read
from tests.integration.spark.sagas.crash_runner import CrashRunner
from tests.integration.spark.sinks.iceberg.rest_catalog import serve

# It costs cold starts of Spark.
pytestmark = pytest.mark.slow


async def test_workers_are_killed_between_two_tables(
    temporal: TemporalServer, server: DatabaseServer, tmp_path: Path
) -> None:
    running: list[CrashRunner] = []
    killed = threading.Event()

    def kill_workers() -> None:
        for worker in running[0].workers:
            worker.kill()
        killed.set()

    uri = new_database(server).replace("postgresql://", "postgresql+psycopg://")
    backing = SqlCatalog("lake", uri=uri, warehouse=(tmp_path / "warehouse").as_uri())
    with serve(backing, fails_after=[1], on_failure=kill_workers) as address:
        day_close = await open_day_close_project(
            tmp_path / "shop",
            server,
            temporal.address,
            publish="together",
            breakpoints=True,
            catalog=f'type = "rest"\nuri = "{address}"\nmulti_table_commit = true\n',
        )
        client = Client(await Temporal.connect(temporal.address, interceptors=[HeaderInterceptor()]), day_close.project)
        crash_runner = CrashRunner("iceberg", ICEBERG, day_close, client)
        running.append(crash_runner)

        def saga(*words: str) -> Any:
            done = run_command(["--json", *words], day_close.folder)
            assert done.stdout, done.stderr
            return json.loads(done.stdout)

        def findings() -> list[dict[str, Any]]:
            return [finding for finding in saga("reconcile")["findings"] if finding["class"] == "published_partly"]

        try:
            crash_runner.start()
            id = f"day-{uuid.uuid4()}"
            await client.start("day", {"day": "2026-01-02"}, id=id)
            await until_in_thread(killed.is_set)
            facts, totals = read(day_close, ICEBERG)
            assert (len(facts), totals) == (2, None)
            [finding] = await asyncio.to_thread(findings)
            assert (finding["saga_id"], finding["place"], finding["command"]) == (
                id,
                "lake.sales.facts",
                f"saga show {id}",
            )
            shown = await asyncio.to_thread(saga, *finding["command"].split()[1:])
            queue = client.project.settings.temporal.task_queue
            assert shown["stuck"] == [f"no worker answers on the task queue {queue}"]
            crash_runner.start()
            story = await finished(client, id, "240s")
            assert story["state"] == "COMPLETED", story["reason"]
            facts, totals = read(day_close, ICEBERG)
            assert (len(facts), [row["amount"] for row in totals]) == (2, [Decimal("2.00")])
            assert await asyncio.to_thread(findings) == []
            await (await client.undo(id, reason="tidy up", who="test")).result()
            assert [rows or [] for rows in read(day_close, ICEBERG)] == [[], []]
        finally:
            crash_runner.stop()
            backing.close()


SPLIT = """
saga: split
publish: together
steps:
  - id: compute
    uses: spark
    with:
      job: split_jobs:split
      inputs: {orders: {connection: shop, table: orders, where: {day: "2026-01-02"}}}
      outputs: {facts: {table: lake.sales.facts}, totals: {table: lake.sales.totals}}
"""

JOB = """
def split(spark, inputs):
    rows = inputs.orders.select("order_id", "amount")
    return {"facts": rows, "totals": rows}
"""


@pytest.mark.timeout(900)
async def test_the_advice_for_a_part_harms_nothing(
    temporal: TemporalServer, server: DatabaseServer, tmp_path: Path
) -> None:
    """In each state in which it is printed; what it leads to is run, too."""
    failures: list[int] = []
    failed = threading.Event()
    breaks = [False]

    def on_failure() -> None:
        if breaks[0]:
            with backing.load_table("sales.totals").update_schema(allow_incompatible_changes=True) as update:
                update.delete_column("amount")
        failed.set()

    uri = new_database(server).replace("postgresql://", "postgresql+psycopg://")
    backing = SqlCatalog("lake", uri=uri, warehouse=(tmp_path / "warehouse").as_uri())
    with serve(backing, fails_after=failures, on_failure=on_failure) as address:
        catalog = f'type = "rest"\nuri = "{address}"\nmulti_table_commit = true\n'
        shop = await open_day_close_project(
            tmp_path / "shop", server, temporal.address, publish="together", catalog=catalog
        )
        (shop.folder / "split.saga.yaml").write_text(SPLIT)
        (shop.folder / "split_jobs.py").write_text(JOB)

        def lake() -> list[int]:
            return [len(shop.lake(f"sales.{name}") or ()) for name in ("facts", "totals")]

        async def saga(command: str) -> str:
            words = ["why" if word == "…" else word for word in shlex.split(command)[1:]]
            yes = ["--yes"] if words[0] in ("undo", "resolve", "reconcile") else []
            done = await asyncio.to_thread(run_command, [*words, *yes], shop.folder)
            assert done.returncode not in (1, 2), done.stderr
            return done.stdout

        async with running_worker(shop.project) as client:

            async def findings_of(id: str) -> dict[str, str]:
                """The findings about the outputs of a saga, with their commands."""
                settings = client.project.settings
                scope, read = ReconciliationScope(saga_id=id), ReconcileInput(tmp_path, time.time())
                findings = await _check_outputs(client.locator, settings, spark_settings(settings), scope, read)
                can_undo = (await client.view(id)).can_undo
                return {finding.kind: repair_command(finding, {}, can_undo=can_undo) for finding in findings}

            async def begin(part: list[int]) -> str:
                failed.clear()
                failures[:] = part
                id = f"split-{uuid.uuid4()}"
                await client.start("split", {}, id=id)
                await until_in_thread(failed.is_set)
                return id

            terminated = await begin([1] + [0] * 500)
            await client.temporal.get_workflow_handle(terminated).terminate("by mistake")
            assert lake() == [2, 0]
            command = f"saga resume {terminated}"
            assert await findings_of(terminated) == {"published_partly": command}
            assert command in await saga(f"saga show {terminated}")
            failures.clear()
            await saga(command)
            assert (await finished(client, terminated, "240s"))["state"] == "COMPLETED"
            assert (lake(), await findings_of(terminated)) == ([2, 2], {})

            for decision in ("done", "skip"):
                breaks[0] = True
                parked = await begin([1])
                assert (await finished(client, parked, "240s"))["state"] == "PARKED"
                breaks[0] = False
                assert (lake(), await findings_of(parked)) == ([4, 2], {"published_partly": f"saga show {parked}"})
                shown = await saga(f"saga show {parked}")
                [retry] = re.findall(r"saga resolve \S+ compute retry --reason '…'$", shown, re.MULTILINE)
                await saga(retry)
                assert (await finished(client, parked, "240s"))["state"] == "PARKED"
                assert lake() == [4, 2]
                await saga(retry.replace("retry", decision))
                state = (await finished(client, parked, "240s"))["state"]
                residue = (await client.show(parked))["residue"]
                assert [(row["kind"], row["key"], row["command"]) for row in residue] == [
                    ("effect_unclear", f"lake.sales.{name}", f"saga reconcile {parked}")
                    for name in (("facts", "totals") if decision == "skip" else ())
                ], "one of them is visible"
                advice = await findings_of(parked)
                for command in advice.values():
                    await saga(command)
                if decision == "done":
                    assert (state, advice.keys()) == ("COMPLETED", {"saga_without_effect"})
                    assert (await client.show(parked))["state"] == "COMPENSATED"
                    assert (lake(), await findings_of(parked)) == ([2, 2], {})
                else:  # what the person has accepted stays as it is, and the record of what is visible, too
                    assert (state, advice.keys()) == ("RESIDUE", {"published_unclaimed", "staged_left"})
                    assert (lake(), (await findings_of(parked)).keys()) == ([4, 2], {"published_unclaimed"})
                    rows = shop.query("select output, state from saga_output where saga_id = %(id)s", {"id": parked})
                    assert {row["output"]: row["state"] for row in rows} == {"facts": "STAGED", "totals": "DISCARDED"}
                with backing.load_table("sales.totals").update_schema() as update:
                    update.add_column("amount", DecimalType(12, 2))
