"""Starts of one saga share the next workflow while one is under way."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from saga_workers.bulk import acceptance
from saga_workers.client import Client
from saga_workers.start import shared_starts
from saga_workers.start.shared_starts import SharedStarts
from saga_workers.start.start_requests import StartResult
from saga_workers.temporal.temporal_client import connect
from sagas.project import Project
from tests.helpers.database_servers import HOST
from tests.helpers.free_ports import free_port
from tests.helpers.local_worker import running_worker
from tests.helpers.processes import CommandProcess
from tests.helpers.waiting import LIMIT, until_in_thread
from tests.integration.bulk.conftest import Bank
from tests.integration.bulk.test_bulk_starts_over_http import bulk_workflows, ids_of_its_own, saga_id, withdrawal

__all__ = ["ids_of_its_own"]  # a fixture of every test here

TOKEN = "a-token-that-nobody-guesses"


async def starts(
    client: Client,
    limit: int = shared_starts.MAX_SHARED,
    wait: float = shared_starts.USUAL_WAIT,
    *,
    callers_return: bool = False,
) -> Any:
    """A function that starts the withdrawal of a number."""
    starter = await client.starter("withdrawal")
    shared = SharedStarts(starter, limit=limit, wait=wait, callers_return=callers_return)

    async def start(number: int) -> StartResult:
        return await shared.start(starter.make_request(withdrawal(number)["input"]))

    return start


async def test_the_first_begins_at_once_and_later_ones_share_the_next(
    bank_project: tuple[Project, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "CLAIM_TIMEOUT", LIMIT)
    project, url = bank_project
    own = Client(await connect(project.settings), project)
    bank = Bank(own, project, url)
    bank.open_accounts(21)
    start = await starts(own, wait=LIMIT)
    first = await start(1)  # although no worker runs, and nobody else has come
    assert (first.started, first.bulk_id, first.run_id != "") == (True, None, True)
    later = [asyncio.create_task(start(number)) for number in range(2, 22)]
    async with running_worker(project) as client:
        (shared,) = {result.bulk_id for result in await asyncio.gather(*later)}
        for id in (saga_id(1), shared):
            await client.temporal.get_workflow_handle(str(id)).result()
        assert await bulk_workflows(bank) == 1
        await client.close()
    await own.close()
    assert set(bank.balances().values()) == {90}


async def test_nobody_waits_for_a_neighbour_that_takes_long(bank: Bank) -> None:
    bank.open_accounts(4)
    start = await starts(bank.client)
    with psycopg.connect(bank.url) as holding:
        holding.execute("select 1 from account where id = 'a1' for update")
        first, _ = await asyncio.gather(start(1), start(2))
        second, _ = await asyncio.gather(start(3), start(4))
        await bank.client.temporal.get_workflow_handle(str(second.bulk_id)).result()
        assert saga_id(1) not in bank.states()
    await bank.client.temporal.get_workflow_handle(str(first.bulk_id)).result()
    assert set(bank.balances().values()) == {90}


async def test_starts_that_come_together_share_a_workflow(bank: Bank) -> None:
    bank.open_accounts(10)
    start = await starts(bank.client, limit=5)
    results = await asyncio.gather(*(start(number) for number in range(1, 11)))
    sizes = Counter(result.bulk_id for result in results)
    assert sorted(sizes.values()) == [5, 5]
    for id in sizes:
        await bank.client.temporal.get_workflow_handle(str(id)).result()
    assert set(bank.balances().values()) == {90}


async def test_many_starts_do_not_wait_for_a_few(bank: Bank) -> None:
    bank.open_accounts(9)
    start = await starts(bank.client, wait=LIMIT)
    with psycopg.connect(bank.url) as holding:
        holding.execute("select 1 from account where id = 'a1' for update")
        first = await start(1)
        results = await asyncio.gather(*(start(number) for number in range(2, 10)))
        (shared,) = {result.bulk_id for result in results}
        await bank.client.temporal.get_workflow_handle(str(shared)).result()
        assert saga_id(1) not in bank.states()
    await bank.client.temporal.get_workflow_handle(first.id).result()
    assert set(bank.balances().values()) == {90}


async def test_callers_whose_sagas_have_ended_together_share_the_next_workflow(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_starts, "_LONGEST_PAUSE", LIMIT)
    monkeypatch.setattr(shared_starts, "_MAX_STILL", 1000)
    callers, turns = 5, 3
    bank.open_accounts(callers * turns)
    start = await starts(bank.client, wait=LIMIT, callers_return=True)

    async def call(caller: int) -> None:
        for turn in range(turns):
            result = await start(1 + caller + callers * turn)
            await bank.client.temporal.get_workflow_handle(str(result.bulk_id)).result()

    await asyncio.gather(*(call(caller) for caller in range(callers)))
    assert await bulk_workflows(bank) == turns
    assert set(bank.balances().values()) == {90}


@pytest.mark.slow
async def test_a_server_that_is_killed_loses_and_repeats_nothing(bank_project: tuple[Project, str]) -> None:
    """Callers repeat what was not answered; a saga that was started and not answered runs once."""
    project, url = bank_project
    total = 60
    root, port = Path(project.settings.root), free_port()
    with (root / "saga.toml").open("a") as settings:
        settings.write(
            '[serve]\nbulk_wait = "250ms"\nstarts_per_second = 10000\n'
            '[serve.tokens.shop]\nsecret = {env = "SERVE_TOKEN"}\nscopes = ["read", "start"]\n'
        )
    process = CommandProcess("serve", root, "serve", "--listen", f"{HOST}:{port}", env={"SERVE_TOKEN": TOKEN})
    headers = {"Authorization": f"Bearer {TOKEN}"}

    async def start_all() -> list[Any]:
        async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}", headers=headers, timeout=60) as caller:
            posts = (caller.post("/sagas/withdrawal", json=withdrawal(n, wait="60s")) for n in range(1, total + 1))
            return await asyncio.gather(*posts, return_exceptions=True)

    async with running_worker(project) as client:
        bank = Bank(client, project, url)
        bank.open_accounts(total)
        try:
            process.start()
            starting = asyncio.create_task(start_all())
            await until_in_thread(lambda: bank.query("select 1 from saga_claim limit 1") or len(bank.states()) > 0)
            process.kill()
            assert any(isinstance(answer, Exception) for answer in await starting), "it was killed too late"
            process.start()
            answers = await start_all()
        finally:
            process.kill()
        await client.close()
    assert [answer.json()["outcome"]["state"] for answer in answers] == ["COMPLETED"] * total
    assert set(bank.balances().values()) == {90}


async def test_the_claim_of_shared_starts_takes_no_workflow_task(bank: Bank) -> None:
    bank.open_accounts(2)
    start = await starts(bank.client)
    result, _ = await asyncio.gather(start(1), start(2))
    handle = bank.client.temporal.get_workflow_handle(str(result.bulk_id))
    await handle.result()
    tasks = [
        event.event_id
        async for event in handle.fetch_history_events()
        if event.HasField("workflow_task_completed_event_attributes")
    ]
    assert len(tasks) == 2  # of its start, and of the end of its only step
