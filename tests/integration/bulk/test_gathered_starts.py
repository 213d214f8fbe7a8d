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
from tests.helpers.waiting import LIMIT, until, until_in_thread
from tests.integration.bulk.conftest import Bank
from tests.integration.bulk.test_bulk_starts_over_http import bulk_workflows, withdrawal

TOKEN = "a-token-that-nobody-guesses"


async def starts(client: Client, limit: int = shared_starts.MAX_SHARED) -> Any:
    """A function that starts the withdrawal of a number."""
    starter = await client.starter("withdrawal")
    shared = SharedStarts(starter, limit=limit)

    async def start(number: int) -> StartResult:
        return await shared.start(starter.make_request(withdrawal(number)["input"]))

    return start


async def test_the_first_begins_at_once_and_later_ones_share_the_next(
    bank_project: tuple[Project, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "CLAIM_TIMEOUT", LIMIT)
    monkeypatch.setattr(shared_starts, "_CLAIMED_WITHIN", LIMIT)
    project, url = bank_project
    own = Client(await connect(project.settings), project)
    bank = Bank(own, project, url)
    bank.open_accounts(21)
    start = await starts(own)
    first = asyncio.create_task(start(1))
    await until(lambda: bulk_workflows(bank))  # although no worker runs, and nobody else has come
    later = [asyncio.create_task(start(number)) for number in range(2, 22)]
    async with running_worker(project) as client:
        results = await asyncio.gather(first, *later)
        workflows = [result.bulk_id for result in results]
        assert len(set(workflows[1:])) == 1
        assert workflows[0] not in workflows[1:]
        for id in set(workflows):
            await client.temporal.get_workflow_handle(str(id)).result()
        await client.close()
    await own.close()
    assert set(bank.balances().values()) == {90}


async def test_nobody_waits_for_a_neighbour_that_takes_long(bank: Bank) -> None:
    bank.open_accounts(2)
    start = await starts(bank.client)
    with psycopg.connect(bank.url) as holding:
        holding.execute("select 1 from account where id = 'a1' for update")
        first = await start(1)
        second = await start(2)
        await bank.client.temporal.get_workflow_handle(str(second.bulk_id)).result()
        assert bank.states() == {"w-2": "COMPLETED"}
    await bank.client.temporal.get_workflow_handle(str(first.bulk_id)).result()
    assert bank.balances() == {"a1": 90, "a2": 90}


async def test_starts_that_come_together_share_a_workflow(bank: Bank) -> None:
    bank.open_accounts(11)
    start = await starts(bank.client, limit=10)
    results = await asyncio.gather(*(start(number) for number in range(1, 12)))
    sizes = Counter(result.bulk_id for result in results)
    assert sorted(sizes.values()) == [1, 10]
    for id in sizes:
        await bank.client.temporal.get_workflow_handle(str(id)).result()
    assert set(bank.balances().values()) == {90}


@pytest.mark.slow
async def test_a_server_that_is_killed_loses_and_repeats_nothing(bank_project: tuple[Project, str]) -> None:
    """Callers repeat what was not answered; a saga that was started and not answered runs once."""
    project, url = bank_project
    total = 60
    root, port = Path(project.settings.root), free_port()
    with (root / "saga.toml").open("a") as settings:
        settings.write(
            "[serve]\nbulk = true\nstarts_per_second = 10000\n"
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


async def test_a_lone_start_takes_no_workflow_task_for_its_claim(bank: Bank) -> None:
    bank.open_accounts(1)
    start = await starts(bank.client)
    handle = bank.client.temporal.get_workflow_handle(str((await start(1)).bulk_id))
    await handle.result()
    tasks = [
        event.event_id
        async for event in handle.fetch_history_events()
        if event.HasField("workflow_task_completed_event_attributes")
    ]
    assert len(tasks) == 2  # of its start, and of the end of its only step
