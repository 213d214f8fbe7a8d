"""A saga whose guard rows and output records are gone, while what it has published is there."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.forked_commands import run_command
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer
from tests.integration.spark.day_close_project import DayCloseProject, open_day_close_project

RATES = """
saga: rates
steps:
  - id: load
    uses: spark
    with: {sql: "select 1 as n", output: {connection: shop, table: rates, mode: append}}
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_published_rows_are_not_reported_as_missing(
    temporal: TemporalServer, server: DatabaseServer, tmp_path: Path
) -> None:
    day_close = await open_day_close_project(tmp_path / "shop", server, temporal.address)
    (day_close.folder / "rates.saga.yaml").write_text(RATES)
    day_close.execute("create table rates (n int)")
    kept, lost = f"kept-{uuid.uuid4()}", f"lost-{uuid.uuid4()}"
    async with running_worker(day_close.project) as client:
        for saga_id in (kept, lost):
            await (await client.start("rates", {}, id=saga_id)).result()
        for table in ("saga_guard", "saga_output"):
            day_close.execute(f"delete from {table} where saga_id = '{lost}'")
        for scope in ([lost], ["--since", "1h"], []):
            kinds = [(finding["class"], finding["saga_id"]) for finding in await findings(day_close, *scope)]
            assert kinds == [("published_unclaimed", lost)], scope
        day_close.execute(f"delete from saga_publication where saga_id = '{lost}'")
        [missing] = await findings(day_close, lost)
        assert missing["class"] == "saga_without_effect"


async def findings(day_close: DayCloseProject, *scope: str) -> list[dict[str, Any]]:
    outcome = await asyncio.to_thread(run_command, ["-o", "json", "reconcile", *scope], day_close.folder)
    return json.loads(outcome.stdout)["findings"]
