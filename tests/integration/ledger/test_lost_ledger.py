"""The ledger's database is down, or its worker is killed before it has written: sagas go on, and the rows follow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from saga_activities.ledger import claims
from saga_workers.client import Client, SagaHandle
from saga_workers.ledger.run_ledger import using_ledger
from saga_workers.reconcile import missing_rows
from saga_workers.reconcile.ledger_check import check_ledger, write_row
from saga_workers.runtime.databases import set_up_database
from sagas.project import Project
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.fault_proxy import FaultProxy
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import CommandProcess, TemporalServer
from tests.helpers.waiting import LIMIT, until
from tests.integration.cli.conftest import CommandLine, fresh
from tests.integration.ledger.conftest import Stay, write_project


@dataclass
class ProxiedStay(Stay):
    """With a ledger behind a proxy; the participant is reached directly."""

    proxy: FaultProxy
    project: Project


@pytest.fixture
async def proxied(
    temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[ProxiedStay]:
    proxy = FaultProxy(postgres_server.port)
    await proxy.start()
    url = new_database(postgres_server)
    through = url.replace(f":{postgres_server.port}/", f":{proxy.port}/")
    project = write_project(tmp_path / "project", temporal.address, url, ledger_url=through)
    for connection in project.settings.sql_connections():
        await set_up_database(connection)
    client = await Client.connect(project)
    commands = CommandLine(tmp_path / "project", capsys, client)
    yield ProxiedStay(tmp_path / "project", capsys, client, url, commands, proxy, project)
    await client.close()
    await proxy.stop()


async def test_sagas_go_on_without_the_ledger_and_their_rows_follow(proxied: ProxiedStay) -> None:
    async with running_worker(proxied.project) as client:
        first = await client.start("stay", {"city": fresh("rome")})
        await proxied.wait_for_row(first.id, "COMPLETED")
        proxied.proxy.refuse = True
        proxied.proxy.cut()
        run = await client.start("trip", {"city": fresh("oslo")})  # its own id is random: nothing to look up
        assert (await finished(client, run.id))["state"] == "COMPLETED"
        shown = await proxied.saga("show", run.id)
        assert (shown.code, "from the ledger" in shown.out) == (0, False), "Temporal knows it"
        repeated = await proxied.saga("start", "stay", "--set", f"city={first.id.removeprefix('stay-')}", "--json")
        assert (repeated.code, repeated.json["started"]) == (0, False), "Temporal knows it"
        unknown = await proxied.saga("start", "stay", "--set", "city=nowhere")
        assert (unknown.code, "it is unknown whether stay-nowhere has run before" in unknown.err) == (1, True)
        absent = await proxied.saga("show", "nobody")
        assert (absent.code, "the ledger in books does not answer" in absent.err) == (1, True)
        listed = await proxied.saga("list", "--saga", "trip", "--state", "COMPLETED", "--since", "5m")
        assert listed.code == 0
        assert "these are only the sagas that Temporal has" in listed.err
        assert proxied.query("select 1 from saga_run where saga_id = %s", run.id) == []
        proxied.proxy.refuse = False
        await proxied.wait_for_row(run.id, "COMPLETED")
        await proxied.wait_for_row(f"{run.id}/hotel", "COMPLETED")
        await _check_views_without_url(proxied, run.id)
        await client.close()


async def _check_views_without_url(stay: ProxiedStay, saga_id: str) -> None:
    """Check the views as while the embedded PostgreSQL is down: its URL is unknown, and Temporal knows the saga."""
    file = stay.folder / "saga.toml"
    head, _, _ = file.read_text().partition("[connections.books]")
    file.write_text(head + '[connections.books]\n[ledger]\nconnection = "books"\n')
    assert (await stay.saga("show", saga_id)).code == 0
    for views in (
        ["list", "--saga", "trip", "--state", "COMPLETED", "--since", "5m"],
        ["parked", "--saga", "trip", "--since", "5m"],
    ):
        shown = await stay.saga(*views)
        assert shown.code == 0, shown
        assert "these are only the sagas that Temporal has" in shown.err
        assert "no embedded PostgreSQL runs for it" in shown.err


def never_write() -> None:
    """The worker never comes to write its rows."""

    async def write(*_: object) -> None:
        await asyncio.Event().wait()

    claims.record = write  # what the writer of the worker calls


async def lose_row(proxied: ProxiedStay) -> SagaHandle:
    """A saga whose worker was killed after its end, before it has written the row."""
    with CommandProcess("worker", proxied.folder, "worker", "--grace", "5s", first=never_write) as worker:
        run = await proxied.client.start("stay", {"city": fresh("rome")})
        async with asyncio.timeout(LIMIT):
            assert await run.result() is not None
        worker.kill()
    assert proxied.query("select 1 from saga_run") == []
    return run


async def test_reconciliation_writes_what_a_killed_worker_has_lost(proxied: ProxiedStay) -> None:
    run = await lose_row(proxied)
    async with using_ledger(proxied.project.settings) as ledger, running_worker(proxied.project) as client:
        states = {run.id: "COMPLETED", "open": "RUNNING", "refused": "FAILED"}
        [finding] = await check_ledger(ledger, "books", states)
        assert (finding.kind, finding.saga_id, finding.details) == ("ledger_differs", run.id, {"ledger": None})
        assert await write_row(client.locator, run.id) == "its row is written as COMPLETED"
        assert await check_ledger(ledger, "books", states) == []
        row = await ledger.find(run.id)
        assert row is not None
        story = (await client.show(run.id)) | {"web_ui": None}
        assert {**row.view.to_json(), "source": None} == {**story, "source": None}
        assert await ledger.machine(run.id) is not None
        # A worker that writes the same end later changes nothing, and an undo replaces the row.
        await client.undo(run.id, reason="r", who="test")
        await proxied.wait_for_row(run.id, "COMPENSATED")
        assert proxied.query("select count(*), max(saga_id) from saga_run") == [(1, run.id)]
        await client.close()


@pytest.mark.slow
async def test_a_terminated_saga_replaces_its_parked_row(proxied: ProxiedStay) -> None:
    proxied.break_undo(True)
    async with using_ledger(proxied.project.settings) as ledger, running_worker(proxied.project) as client:
        run = await client.start("outing", {"city": fresh("oslo")})
        await finished(client, run.id)
        await proxied.wait_for_row(run.id, "PARKED")
        assert await check_ledger(ledger, "books", {run.id: "PARKED"}) == []
        await client.temporal.get_workflow_handle(run.id).terminate("a mistake")
        [finding] = await check_ledger(ledger, "books", {run.id: "TERMINATED"})
        assert finding.details == {"ledger": "PARKED"}
        assert await write_row(client.locator, run.id) == "its row is written as TERMINATED"
        assert proxied.query("select state, ended_at is null from saga_run") == [("TERMINATED", False)]
        await client.close()


def look_soon() -> None:
    missing_rows.MIN_AGE = 0.5


async def test_the_next_worker_writes_what_a_killed_one_has_lost(proxied: ProxiedStay) -> None:
    run = await lose_row(proxied)
    with CommandProcess("next", proxied.folder, "worker", "--grace", "5s", first=look_soon) as worker:
        await proxied.wait_for_row(run.id, "COMPLETED")
        await until(lambda: "1 row was missing in the ledger" in worker.log.read_text())
