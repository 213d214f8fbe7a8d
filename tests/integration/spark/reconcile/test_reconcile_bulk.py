"""`saga reconcile` over sagas that ran in bulk workflows, one of which somebody has terminated."""

from __future__ import annotations

import uuid
from pathlib import Path

import psycopg
import pytest

from saga_workers.runtime.databases import set_up_database
from saga_workers.start.start_requests import BulkRow
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.spark.reconcile.reconcile_environment import Shop

PLACED = """
select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()
and exists (select 1 from saga_guard where saga_id = '{}' and step = 'hold')
"""


@pytest.mark.slow
async def test_sagas_of_a_terminated_bulk_workflow_are_reported_and_repaired(
    temporal: TemporalServer, server: DatabaseServer, kafka: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path / "project", server, temporal, kafka)
    with (shop.folder / "saga.toml").open("a") as settings:
        settings.write('\n[ledger]\nconnection = "shop"\n')
    shop.project = Project(load_settings(config=str(shop.folder / "saga.toml")))
    await set_up_database(shop.project.settings.sql_connection("shop"))
    mark = uuid.uuid4().hex[:8]
    ended, cut = [[f"{mark}-{name}-{number}" for number in range(4)] for name in ("ended", "cut")]
    async with running_worker(shop.project) as client:
        starter = await client.starter("shop")
        totals = ("500", "1.50", "2.50", "3.50")  # the first is rejected
        rows = [BulkRow(id, starter.make_request({"total": total})) for id, total in zip(ended, totals, strict=True)]
        result = await (await starter.start_bulk(rows)).result()
        assert result["counts"] == {"COMPENSATED": 1, "COMPLETED": 3}
        await shop.publish()
        code, report = await shop.reconcile(capsys)
        assert (code, report["counts"]) == (0, {}), report
        assert report["read"]["sagas"] == len(ended)

        url = shop.url.replace("+psycopg", "")
        async with await psycopg.AsyncConnection.connect(url) as blocker:
            await blocker.execute("lock table orders in share mode")  # the second step of every saga waits
            rows = [BulkRow(id, starter.make_request({"total": "1"})) for id in cut]
            bulk = await starter.start_bulk(rows)
            await until(lambda: bool(shop.sql(PLACED.format(cut[0]))))
            await bulk.terminate("by mistake")
        code, report = await shop.reconcile(capsys)
        assert code == 8
        claimed = {finding["saga_id"] for finding in report["findings"] if finding["class"] == "claim_left"}
        assert claimed == set(cut), report["findings"]
        assert all(shop.held(id) or shop.sql(f"select 1 from orders where saga_id = '{id}'") for id in cut)

        code, report = await shop.reconcile(capsys, "--repair", "--yes")
        assert (code, report["counts"]) == (0, {}), report
        continued = [(repair["saga_id"], repair["done"]) for repair in report["repairs"]]
        assert sorted(continued) == [(id, "undone; it is COMPENSATED") for id in sorted(cut)]
        states = dict(shop.sql(f"select saga_id, state from saga_run where saga_id like '{mark}-cut-%'"))
        assert states == dict.fromkeys(cut, "COMPENSATED")
        assert not shop.sql("select 1 from saga_claim")
        assert not any(shop.held(id) or shop.sql(f"select 1 from orders where saga_id = '{id}'") for id in cut)
        assert len(shop.sql("select 1 from orders")) == 3
        await client.close()
