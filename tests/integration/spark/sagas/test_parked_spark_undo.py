"""An undo of a Spark step that parks at one of three outputs: what the views name, what stays, how it is closed."""

from __future__ import annotations

import asyncio
import json
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from saga_cli.render.saga_view import view_lines
from saga_spark.sinks.parquet.parquet_pointer import read_pointer
from saga_workers.client import Client
from sagas.presentation.styled_text import to_plain
from sagas.protocol.saga_view import SagaView
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.forked_commands import run_command
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.processes import TemporalServer
from tests.integration.spark.day_close_project import DayCloseProject, open_day_close_project

TIMEOUT = "300s"

RATES = """
saga: rates
steps:
  - id: compute
    uses: spark
    with:
      job: rate_jobs:rates
      inputs: {orders: {connection: shop, table: orders, where: {day: "2026-01-02"}}}
      outputs:
        rates: {connection: shop, table: rates, mode: merge, key: [order_id]}
        lake: {table: lake.sales.rates}
        files: {parquet: out/rates}
"""

JOB = """
def rates(spark, inputs):
    rows = inputs.orders.select("order_id", "amount")
    return {"rates": rows, "lake": rows, "files": rows}
"""

TABLE = """
create table rates (order_id bigint primary key, amount numeric(12, 2));
insert into rates values (10, 7.77)
"""

BEFORE = [{"order_id": 10, "amount": "7.77"}]


def rows(day_close: DayCloseProject) -> list[dict[str, Any]]:
    return day_close.query("select order_id, amount::numeric(12, 2)::text as amount from rates order by 1")


async def undone(client: Client, saga: str) -> dict[str, Any]:
    """The view after an undo has parked."""
    await client.undo(saga, reason="wrong day", who="kim")
    story = await finished(client, saga, TIMEOUT)
    while story["state"] == "COMPLETED":
        story = await finished(client, saga, TIMEOUT)
    assert story["state"] == "PARKED", story
    return story


@pytest.mark.slow  # each sink, and the views of parked sagas, have tests of their own
@pytest.mark.timeout(600)
async def test_an_undo_that_parks_at_one_output(
    temporal: TemporalServer, server: DatabaseServer, tmp_path: Path
) -> None:
    day_close = await open_day_close_project(tmp_path / "shop", server, temporal.address)
    (day_close.folder / "rates.saga.yaml").write_text(RATES)
    (day_close.folder / "rate_jobs.py").write_text(JOB)
    day_close.execute(TABLE)
    async with running_worker(day_close.project) as client:
        skipped, closed = f"left-{uuid.uuid4()}", f"closed-{uuid.uuid4()}"
        await (await client.start("rates", {}, id=skipped)).result()
        day_close.execute("alter table rates add more text")
        story = await undone(client, skipped)
        [waits] = story["parked"]
        assert "column more: added (text); change that back" in waits["why"]
        [output] = waits["outputs"]
        assert (output["output"], output["system"], output["place"]) == ("rates", "shop", "rates")
        assert waits["reverted"] == ["files", "lake"]
        assert day_close.lake("sales.rates") == []
        assert read_pointer(str(day_close.folder / "out" / "rates")) == []
        shown = "\n".join(map(to_plain, view_lines(SagaView.from_json(story), now=datetime.now(UTC))))
        assert "undone   compute (files, lake)" in shown
        assert "remains  compute (rates)" in shown

        day_close.execute("alter table rates drop more")
        day_close.execute("update rates set amount = 5 where order_id = 10")
        await client.resolve(skipped, {"step": "compute", "decision": "retry", "reason": "dropped", "who": "kim"})
        story = await finished(client, skipped, TIMEOUT)
        [waits] = story["parked"]
        assert waits["outputs"][0]["rows"] == [
            {"key": {"order_id": "10"}, "before": {"amount": "7.77"}, "now": {"amount": "5.00"}}
        ]
        shown = "\n".join(map(to_plain, view_lines(SagaView.from_json(story), now=datetime.now(UTC))))
        assert "before amount=7.77" in shown
        dry = await saga(day_close, "resolve", skipped, "compute", "skip", "--reason", "leave it", "--dry-run")
        assert "the effect of compute in shop, key rates, stays" in dry
        assert "COMMIT;" in dry, "the SQL is whole"
        await client.resolve(skipped, {"step": "compute", "decision": "skip", "reason": "leave it", "who": "kim"})
        story = await finished(client, skipped, TIMEOUT)
        assert story["state"] == "RESIDUE"
        [residue] = story["residue"]
        assert (residue["system"], residue["key"]) == ("shop", "rates")
        day_close.execute(residue["command"])
        assert rows(day_close) == BEFORE

        await (await client.start("rates", {}, id=closed)).result()
        day_close.execute("update rates set amount = 5 where order_id = 10")
        await undone(client, closed)
        day_close.execute("delete from rates")
        day_close.execute("insert into rates values (10, 7.77)")
        decision = {"step": "compute", "decision": "done", "reason": "by hand", "evidence": "ticket 7", "who": "kim"}
        await client.resolve(closed, decision)
        story = await finished(client, closed, TIMEOUT)
        assert story["state"] == "COMPENSATED"
        assert story["operator"][-1]["closed"] == ["rates"]
        shown = "\n".join(map(to_plain, view_lines(SagaView.from_json(story), now=datetime.now(UTC))))
        assert "kim: done compute, which closes rates, because by hand; evidence: ticket 7" in shown
        states = f"select output, state from saga_output where saga_id = '{closed}' order by 1"
        assert [tuple(row.values()) for row in day_close.query(states)] == [
            ("files", "REVERTED"), ("lake", "REVERTED"), ("rates", "CLOSED"),
        ]  # fmt: skip
        await (await client.start("rates", {}, id=closed, again=True)).result()
        report = json.loads(await saga(day_close, "-o", "json", "reconcile", closed))
        assert report["consistent"], report
        [decided] = report["decided"]
        assert (decided["saga_id"], decided["output"], decided["place"]) == (closed, "rates", "shop:rates")
        assert (decided["generation"], decided["state"]) == (1, "CLOSED")
        assert (decided["who"], decided["reason"], decided["evidence"]) == ("kim", "by hand", "ticket 7")


async def saga(day_close: DayCloseProject, *words: str) -> str:
    """The stdout of a command."""
    return (await asyncio.to_thread(run_command, words, day_close.folder)).stdout
