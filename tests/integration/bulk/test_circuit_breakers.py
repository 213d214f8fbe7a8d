"""A database that is stopped and started again: its circuit breaker holds single sagas and chunks, and closes."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from temporalio.client import WorkflowHandle

from saga_activities import circuit_breakers, standing_pauses
from saga_activities.connections import open_engine
from saga_activities.ledger.circuit_breakers import OpenBreaker, insert_breaker
from saga_workers.runtime.databases import set_up_database
from saga_workers.worker.worker_metrics import SagaGauges
from sagas.project import Project
from sagas.protocol.payloads import VIEW_QUERY
from sagas.settings import load_settings
from tests.helpers.database_servers import postgres
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.bulk.conftest import Bank, write_project
from tests.integration.bulk.test_bulk_execution import transfer
from tests.integration.bulk.test_views_and_actions import start_bulk
from tests.integration.cli.conftest import CommandLine

BREAKER = 'circuit_breaker = {minimum = 2, probe_every = "4s"}\n'


def with_breaker(project: Project) -> Project:
    file = project.settings.root / "saga.toml"
    file.write_text(file.read_text().replace("[ledger]", f"{BREAKER}[ledger]"))
    return Project(load_settings(config=str(file)))


async def test_sagas_wait_for_a_database_that_is_stopped(
    temporal: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server, which also has the ledger, is stopped in the middle of the first chunk."""
    monkeypatch.setattr(circuit_breakers, "MAX_AGE", 0.0)
    monkeypatch.setattr(standing_pauses, "MAX_AGE", 0.0)
    with postgres() as server:
        project = with_breaker(write_project(tmp_path / "project", temporal.address, server.url()))
        await set_up_database(project.settings.sql_connection("bank"))
        async with running_worker(project) as client:
            bank = Bank(client, project, server.url())
            bank.open_accounts(200)
            with contextlib.closing(psycopg.connect(server.url())) as other:
                other.execute("lock table account in access exclusive mode")
                bulk = await start_bulk(bank, "transfer", [transfer(number) for number in range(1, 21)])
                alone = (await client.start("transfer", transfer(30))).id
                await until(lambda: waits_for_lock(bank, 2))
                server.stop()
            single = client.temporal.get_workflow_handle(alone)
            await asyncio.gather(until(lambda: is_held(bulk, "t-7")), until(lambda: is_held(single)))
            server.start()
            await bulk.result()
            story = await finished(client, alone)
            states = bank.states()
            await client.close()
        assert story["state"] == "COMPLETED"
        assert (len(states), set(states.values())) == (21, {"COMPLETED"})
        assert sum(bank.balances().values()) == 200 * 100
        assert bank.query("select * from saga_circuit_breaker") == []


async def waits_for_lock(bank: Bank, count: int) -> bool:
    query = "select count(*) from pg_locks where relation = 'account'::regclass and not granted"
    return bank.query(query) == [(count,)]


async def is_held(run: WorkflowHandle[Any, Any], *saga_id: str) -> bool:
    """Ask the run: the client looks for a saga of a bulk workflow in the ledger."""
    view = await run.query(VIEW_QUERY, args=saga_id)
    return view.get("paused", {}).get("kind") == "circuit_breaker"


async def test_an_open_one_is_shown_and_closed(bank: Bank, capsys: pytest.CaptureFixture[str]) -> None:
    project = with_breaker(bank.project)
    cli = CommandLine(project.settings.root, capsys, bank.client)
    engine = open_engine("bank", bank.url, 1)
    opened = OpenBreaker("bank", datetime.now(UTC), "2 of the last 2 attempts failed", 3600.0)
    await insert_breaker(engine, opened)
    listed = await cli.saga("list", "--stuck")
    assert "the circuit breaker of the connection bank is open since" in listed.err
    assert "0 sagas wait for it" in listed.err
    [check] = [check for check in (await cli.saga("--json", "doctor")).json if check["check"] == "circuit breakers"]
    assert (check["ok"], check["help"]) == (False, "saga resume --connection bank")
    assert "holds nothing" not in check["message"]
    closed = await cli.saga("--json", "resume", "--connection", "bank")
    assert (closed.code, closed.json["response"], closed.json["circuit_breaker"]) == (0, "closed", "closed")
    refused = await cli.saga("resume", "--connection", "bank")
    assert refused.code == 9
    assert "the connection bank is not paused, and no circuit breaker of it is open" in refused.err

    await insert_breaker(engine, opened)
    assert (await cli.saga("pause", "--connection", "bank")).code == 0
    both = await cli.saga("resume", "--connection", "bank")
    assert (both.code, both.out) == (
        0,
        "the connection bank is resumed and the circuit breaker of the connection bank is closed; "
        "calls that wait begin within a minute\n",
    )
    assert bank.query("select name from saga_pause union all select connection from saga_circuit_breaker") == []

    file = project.settings.root / "saga.toml"
    file.write_text(file.read_text().replace(BREAKER, ""))
    await insert_breaker(engine, opened)
    await engine.dispose()
    [check] = [check for check in (await cli.saga("--json", "doctor")).json if check["check"] == "circuit breakers"]
    assert "it holds nothing, because these settings have none for this connection" in check["message"]
    assert (await cli.saga("resume", "--connection", "bank")).code == 0


async def test_the_metric_has_the_state_of_each(bank: Bank) -> None:
    async def read() -> dict[str, circuit_breakers.BreakerState]:
        return {"crm": "half_open"}

    gauges = SagaGauges(bank.client.temporal, dict, breakers=read)
    await gauges.refresh()
    [metric] = [metric for metric in gauges.collect() if metric.name == "saga_circuit_breaker"]
    states = {sample.labels["state"]: sample.value for sample in metric.samples}
    assert states == {"closed": 0, "open": 0, "half_open": 1}
