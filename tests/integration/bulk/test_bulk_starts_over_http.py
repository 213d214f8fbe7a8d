"""Starts over HTTP that share a workflow: each caller gets what it would get without the others."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from saga_workers.bulk import acceptance
from saga_workers.client import Client
from saga_workers.runtime.http_server import HttpServer
from saga_workers.serve.api import SagaApi
from saga_workers.serve.api_tokens import Callers
from saga_workers.serve.project_sagas import ProjectSagas
from saga_workers.start import saga_starter, shared_starts
from saga_workers.start.bulk_wait import check_bulk_wait
from saga_workers.temporal.temporal_client import connect
from sagas.errors import RefusedError, UsageError
from sagas.project import Project
from sagas.settings import Secret, load_settings
from sagas.settings.serve import ServeSettings, ServeToken
from tests.helpers.database_servers import HOST
from tests.helpers.local_worker import running_worker
from tests.helpers.waiting import LIMIT
from tests.integration.bulk.conftest import Bank


@contextlib.asynccontextmanager
async def serving(
    project: Project, monkeypatch: pytest.MonkeyPatch, *, bulk: bool = True, max_waiting: int = 256
) -> AsyncIterator[httpx.AsyncClient]:
    """A caller of the API, which runs in this process."""
    monkeypatch.setenv("SHOP_TOKEN", "token")
    token = ServeToken(secret=Secret("env", "SHOP_TOKEN"), scopes=("read", "start"))
    serve = ServeSettings(
        tokens={"shop": token}, bulk_wait=0.25 if bulk else 0.0, max_waiting=max_waiting, starts_per_second=1000
    )
    settings = project.settings.model_copy(update={"serve": serve})
    client = Client(await connect(settings), Project(settings))
    sagas = ProjectSagas(client.project, client.locator)
    api = SagaApi(client.locator, Callers(settings), client, sagas=sagas, settings=serve)
    async with HttpServer(f"{HOST}:0", api.app, option="--listen", description="the API") as server:
        headers, limits = {"Authorization": "Bearer token"}, httpx.Limits(max_connections=200)
        url = f"http://{HOST}:{server.port}"
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=LIMIT, limits=limits) as caller:
            yield caller
    await client.close()


_test = {"mark": ""}
"""The mark of the current test in its ids: Temporal keeps the sagas of all tests."""


@pytest.fixture(autouse=True)
def ids_of_its_own() -> None:
    _test["mark"] = uuid.uuid4().hex[:8]


def saga_id(number: int) -> str:
    return f"w-{_test['mark']}-{number}"


def withdrawal(number: int, amount: int = 10, **fields: Any) -> dict[str, Any]:
    return {"input": {"id": saga_id(number), "account": f"a{number}", "amount": amount}, **fields}


async def bulk_workflows(bank: Bank) -> int:
    queue = bank.project.settings.temporal.task_queue
    query = f"TaskQueue = '{queue}' AND WorkflowType = 'saga.bulk'"
    return (await bank.client.temporal.count_workflows(query)).count


async def test_each_caller_gets_the_outcome_of_its_saga(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    bank.open_accounts(60)
    async with serving(bank.project, monkeypatch) as caller:

        async def post(**body: Any) -> httpx.Response:
            return await caller.post("/sagas/withdrawal", json=body)

        bodies = [withdrawal(n, 1000 if n % 10 == 0 else 10, wait="60s") for n in range(1, 61)]
        answers = await asyncio.gather(*(post(**body) for body in bodies))
        assert [answer.status_code for answer in answers] == [200] * 60
        for number, answer in enumerate(answers, 1):
            document = answer.json()
            assert (document["id"], document["started"]) == (saga_id(number), True)
            assert document["outcome"]["state"] == ("COMPENSATED" if number % 10 == 0 else "COMPLETED")
        assert answers[9].json()["outcome"]["reason"]["message"] == "no money"
        assert (await caller.get(f"/sagas/{saga_id(3)}")).json() == answers[2].json()["outcome"]
        started = await bulk_workflows(bank)

        again = await asyncio.gather(*(post(**withdrawal(3)) for _ in range(5)))
        assert [(answer.status_code, answer.json()) for answer in again] == [
            (200, {**answers[2].json(), "started": False})
        ] * 5
        undone, other, invalid, empty = await asyncio.gather(
            post(**withdrawal(10, 1000)),
            post(**withdrawal(3, 11)),
            post(**withdrawal(3, id="a/b")),
            post(**withdrawal(3, id="")),
        )
        assert (undone.status_code, undone.json()["state"]) == (409, "COMPENSATED")
        assert (other.status_code, "another input" in other.json()["error"]) == (409, True)
        assert (invalid.status_code, "/" in invalid.json()["error"]) == (422, True)
        assert (empty.status_code, "empty" in empty.json()["error"]) == (422, True)
        assert await bulk_workflows(bank) == started
    assert sorted(bank.balances().values()) == [90] * 54 + [100] * 6


async def test_concurrent_starts_of_one_id_run_one_saga(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    bank.open_accounts(3)
    async with serving(bank.project, monkeypatch) as service, serving(bank.project, monkeypatch) as two:
        bodies = [withdrawal(1), withdrawal(1), withdrawal(1, 20), withdrawal(2, wait="60s"), withdrawal(2, wait="60s")]
        answers = await asyncio.gather(
            *(api.post("/sagas/withdrawal", json=body) for body in bodies for api in (service, two))
        )
    assert sum(answer.json().get("started", False) for answer in answers) == 2
    refused = [answer for answer in answers if answer.status_code == 409]
    amount = 100 - bank.balances()["a1"]
    assert len(refused) == (2 if amount == 10 else 4)
    assert all("another input" in answer.json()["error"] for answer in refused)
    assert {answer.json()["outcome"]["state"] for answer in answers[-4:]} == {"COMPLETED"}
    assert bank.balances() == {"a1": 100 - amount, "a2": 90, "a3": 100}


async def test_a_saga_that_left_is_followed(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(bank.project, monkeypatch) as caller:

        async def post(id: str, *, waits: bool, **fields: Any) -> httpx.Response:
            return await caller.post("/sagas/waiting", json={"input": {"id": id, "waits": waits}, **fields})

        leaving = asyncio.create_task(post("http-1", waits=True, wait="60s"))
        quick = await post("http-2", waits=False, wait="60s")
        assert quick.json()["outcome"]["state"] == "COMPLETED"
        short = await post("http-3", waits=True, wait="1s")
        assert (short.status_code, short.json()["outcome"]) == (202, None)
        repeated, other = await asyncio.gather(post("http-3", waits=True), post("http-3", waits=False))
        assert (repeated.status_code, repeated.json()["started"]) == (202, False)
        assert (other.status_code, "another input" in other.json()["error"]) == (409, True)
        await bank.client.signal("http-1", "go")
        assert (await leaving).json()["outcome"]["state"] == "COMPLETED"


async def test_a_start_that_no_worker_has_claimed_is_repeated(
    bank_project: tuple[Project, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may still refuse it, and nobody would ever tell the caller."""
    monkeypatch.setattr(acceptance, "CLAIM_TIMEOUT", 0.3)
    project, url = bank_project
    own = Client(await connect(project.settings), project)
    bank = Bank(own, project, url)
    bank.open_accounts(2)
    starter = await own.starter("withdrawal")
    shared = shared_starts.SharedStarts(starter)

    async def start(number: int, amount: int = 10) -> shared_starts.StartResult:
        return await shared.start(starter.make_request(withdrawal(number, amount)["input"]))

    async def repeat(number: int) -> shared_starts.StartResult:
        while True:
            with contextlib.suppress(acceptance.NotClaimed):
                return await start(number)

    answers = await asyncio.gather(start(1), start(2), start(1), return_exceptions=True)
    unclaimed = [answer.saga_id for answer in answers if isinstance(answer, acceptance.NotClaimed)]
    assert unclaimed == [saga_id(1), saga_id(2), saga_id(1)]
    with pytest.raises(acceptance.NotClaimed):
        await start(1, 11)
    repeated = asyncio.create_task(repeat(1))
    async with running_worker(project) as client:
        results = [await repeated, await repeat(2)]
        assert [result.started for result in results] == [True, True]
        for id in {result.bulk_id for result in results if result.bulk_id is not None}:  # None: it has ended already
            await client.temporal.get_workflow_handle(id).result()
        with pytest.raises(RefusedError, match="another input"):
            await start(1, 11)
        assert await bulk_workflows(bank) == 1
        await client.close()
    await own.close()
    assert bank.balances() == {"a1": 90, "a2": 90}


async def test_without_a_worker_a_shared_start_is_answered_with_its_id(
    bank_project: tuple[Project, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "CLAIM_TIMEOUT", 0.3)
    async with serving(bank_project[0], monkeypatch) as caller:
        answers = await asyncio.gather(
            *(caller.post("/sagas/withdrawal", json=withdrawal(number)) for number in range(1, 21))
        )
    for number, answer in enumerate(answers, 1):
        assert answer.json()["id"] == saga_id(number)
        assert (answer.status_code, answer.headers.get("retry-after")) in ((202, None), (503, "5"))


@pytest.mark.slow
async def test_starts_that_are_too_large_together_are_started_in_parts(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal refuses the whole input of the workflow; a server may allow less than ours does."""
    monkeypatch.setattr(shared_starts, "MAX_SHARED_INPUTS", 16_000_000)
    monkeypatch.setattr(saga_starter, "MAX_BULK_INPUT", 16_000_000)
    bank.open_accounts(4)
    starter = await bank.client.starter("withdrawal")
    shared = shared_starts.SharedStarts(starter)

    async def start(number: int, size: int) -> shared_starts.StartResult:
        request = starter.make_request({**withdrawal(number)["input"], "note": "x" * size})
        return await shared.start(request)

    answers = await asyncio.gather(
        *(start(number, size) for number, size in ((1, 900_000), (2, 900_000), (3, 900_000), (4, 3_000_000))),
        return_exceptions=True,
    )
    assert [type(answer).__name__ for answer in answers] == ["StartResult"] * 3 + ["UsageError"]
    assert "cannot be started" in str(answers[3])
    results = [answer for answer in answers if isinstance(answer, shared_starts.StartResult)]
    assert len({result.bulk_id for result in results}) == 2
    for bulk_id in {result.bulk_id for result in results if result.bulk_id is not None}:
        await bank.client.temporal.get_workflow_handle(bulk_id).result()
    assert sorted(bank.balances().values()) == [90, 90, 90, 100]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("bulk", [True, False])
async def test_so_many_starts_wait_for_their_ends(bank: Bank, monkeypatch: pytest.MonkeyPatch, bulk: bool) -> None:
    bank.open_accounts(3)
    async with serving(bank.project, monkeypatch, bulk=bulk, max_waiting=1) as caller:

        async def post(number: int) -> httpx.Response:
            return await caller.post("/sagas/withdrawal", json=withdrawal(number, wait="60s"))

        with psycopg.connect(bank.url) as holding:
            holding.execute("select 1 from account for update")
            waiting = {asyncio.create_task(post(number)) for number in (1, 2, 3)}
            answered: set[asyncio.Task[httpx.Response]] = set()
            while len(answered) < 2:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                answered |= done
            assert [(task.result().status_code, task.result().json()["outcome"]) for task in answered] == [
                (202, None)
            ] * 2
            assert len(waiting) == 1
        answer = await waiting.pop()
        assert (answer.status_code, answer.json()["outcome"]["state"]) == (200, "COMPLETED")


def test_sharing_needs_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_text('[serve]\nbulk_wait = "250ms"\n')
    settings = load_settings(config=str(tmp_path / "saga.toml"))
    with pytest.raises(UsageError, match=r"serve\.bulk_wait needs a ledger"):
        check_bulk_wait(settings, "serve", settings.serve.bulk_wait)
