"""Sagas whose parallel steps, or several outputs of a step, publish to one PostgreSQL table: the undo of everything."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.processes import TemporalServer
from tests.integration.spark.day_close_project import open_day_close_project

PARALLEL = """
saga: parallel
steps:
  - id: a
    needs: []
    uses: spark
    with: {sql: "select 1 as id, 'a' as p", output: {connection: shop, table: rates, mode: append}}
  - id: b
    needs: []
    uses: spark
    with: {sql: "select 2 as id, 'b' as p", output: {connection: shop, table: rates, mode: overwrite}}
"""

TWICE = """
saga: twice
steps:
  - id: load
    uses: spark
    with:
      job: rate_jobs:twice
      outputs:
        x: {connection: shop, table: rates, mode: append}
        y: {connection: shop, table: public.rates, mode: overwrite}
"""

NEST = """
saga: nest
steps:
  - id: kid
    uses: saga
    with: {name: twice, input: {}}
  - id: no
    uses: require
    with: {that: "${{ 1 > 2 }}", message: stop}
"""

JOB = """
def twice(spark, inputs):
    return {"x": spark.sql("select 1 as id, 'a' as p"), "y": spark.sql("select 2 as id, 'b' as p")}
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_table_is_as_before_after_each_undo(
    temporal: TemporalServer, server: DatabaseServer, tmp_path: Path
) -> None:
    day_close = await open_day_close_project(tmp_path / "shop", server, temporal.address)
    for name, text in {"parallel": PARALLEL, "twice": TWICE, "nest": NEST}.items():
        (day_close.folder / f"{name}.saga.yaml").write_text(text)
    (day_close.folder / "rate_jobs.py").write_text(JOB)
    day_close.execute("create table rates (id int primary key, p text)")
    day_close.execute("insert into rates values (9, 'base')")
    async with running_worker(day_close.project) as client:
        for saga in ("twice", "parallel", "parallel", "parallel"):
            saga_id = f"{saga}-{uuid.uuid4()}"
            await (await client.start(saga, {}, id=saga_id)).result()
            assert (2, "b") in [tuple(row.values()) for row in day_close.query("select id, p from rates")]
            await (await client.undo(saga_id, reason="wrong day", who="kim")).result()
            assert (await finished(client, saga_id, "240s"))["state"] == "COMPENSATED"
            assert day_close.query("select id, p from rates") == [{"id": 9, "p": "base"}]
        nested = f"nest-{uuid.uuid4()}"
        await client.start("nest", {}, id=nested)
        assert (await finished(client, nested, "240s"))["state"] == "COMPENSATED"
        assert day_close.query("select id, p from rates") == [{"id": 9, "p": "base"}]
