"""Bulk execution where the ledger and the participant are on MariaDB or SQLite: row by row, with the same outcomes."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from saga_activities.connections import open_engine
from saga_workers.runtime.databases import set_up_database
from saga_workers.start.start_requests import BulkRow
from tests.helpers.local_worker import running_worker
from tests.helpers.new_databases import new_url
from tests.helpers.processes import TemporalServer
from tests.integration.bulk.conftest import write_project
from tests.integration.bulk.test_bulk_execution import transfer

SCHEMA = """
create table if not exists account (id varchar(40) primary key, balance int not null);
create table if not exists note (id varchar(40) primary key, text varchar(40));
"""
COUNT = 30
ORIGINS = "select count(*) from saga_guard where step = 'debit' and op = 'do' and reason = 'do' and origin is not null"


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("kind", ["mariadb", "sqlite"])
async def test_each_saga_has_its_outcome(
    kind: str, request: pytest.FixtureRequest, temporal: TemporalServer, tmp_path: Path
) -> None:
    url = await new_url(kind, request, tmp_path)
    project = write_project(tmp_path / "project", temporal.address, url, schema=SCHEMA)
    await set_up_database(project.settings.sql_connection("bank"))
    engine = open_engine("look", url, 1)
    async with engine.begin() as connection:
        accounts = [{"id": f"a{n}", "balance": 100} for n in range(1, 200)]
        await connection.execute(sa.text("insert into account values (:id, :balance)"), accounts)
    sagas = [transfer(n, amount=1000 if n % 5 == 0 else 10, text="fails" if n % 7 == 0 else "ok") for n in range(COUNT)]
    async with running_worker(project) as client:
        starter = await client.starter("transfer")
        rows = [BulkRow(str(saga["id"]), starter.make_request(saga)) for saga in sagas]
        first = await (await starter.start_bulk(rows)).result()
        again = await (await starter.start_bulk(rows)).result()
        story = await client.view("t-7")
        await client.close()
    failed = {n for n in range(COUNT) if n % 5 == 0 or n % 7 == 0}
    assert first["counts"] == {"COMPLETED": COUNT - len(failed), "COMPENSATED": len(failed)}
    assert again["counts"] == {}
    assert {row["state"] for row in again["existing"].values()} == {"COMPLETED", "COMPENSATED"}
    assert (story.state, story.steps[1].state) == ("COMPENSATED", "COMPENSATED")
    async with engine.connect() as connection:
        balances = {row[0]: row[1] for row in await connection.execute(sa.text("select id, balance from account"))}
        states = {row[0]: row[1] for row in await connection.execute(sa.text("select saga_id, state from saga_run"))}
        origins = (await connection.execute(sa.text(ORIGINS))).scalar_one()
        claims = (await connection.execute(sa.text("select count(*) from saga_claim"))).scalar_one()
    await engine.dispose()
    assert states == {f"t-{n}": "COMPENSATED" if n in failed else "COMPLETED" for n in range(COUNT)}
    assert [balances[f"a{n}"] for n in range(1, COUNT)] == [100 if n in failed else 90 for n in range(1, COUNT)]
    assert [balances[f"a{n + 100}"] for n in range(COUNT) if n < 99] == [
        100 if n in failed else 110 for n in range(COUNT)
    ]
    assert origins == COUNT - COUNT // 5
    assert claims == 0
