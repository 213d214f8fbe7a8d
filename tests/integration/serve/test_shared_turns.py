"""`saga serve` without a worker: slow callers, callers beside them, and what it reads again for each request."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from saga_activities.ledger.schema import create_ledger
from saga_workers.client import Client
from saga_workers.serve import admission, request_body
from saga_workers.serve.admission import Admission
from saga_workers.serve.console.sessions import COOKIE
from sagas import project as project_module
from tests.helpers.database_servers import HOST
from tests.helpers.local_worker import make_project
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import LIMIT
from tests.integration.engine.environment import open_environment
from tests.integration.serve.test_console import FORM, TOKENS, form_token, serving

CARD = "4711-0815-4711"
RESTS = """
saga: rests
input: {type: object, properties: {card: {type: string, x-sensitive: true}}}
steps:
  - {id: approve, uses: wait, with: {for: 1h}}
"""


@dataclass(frozen=True)
class Served:
    """A console; ``saga_id``: of a saga that no worker runs."""

    client: Client
    url: str
    saga_id: str

    async def sign_in(self, browser: httpx.AsyncClient, token: str) -> str:
        """Begin a session; returns the token of its forms."""
        answer = await browser.post("/console/sign-in", data={"token": token})
        assert answer.status_code == 303, answer.text
        return form_token((await browser.get("/console/sagas")).text)

    def browser(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=LIMIT, headers={"Origin": self.url})


@pytest.fixture
async def served(temporal: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """A console that does one thing of each kind at once."""
    for name in ("MAX_CONCURRENT_READS", "MAX_CONCURRENT_PAGES", "MAX_CONCURRENT_OPERATIONS"):
        monkeypatch.setattr(admission, name, 1)
    for name, value in TOKENS.items():
        monkeypatch.setenv(name, value)
    environment = await open_environment(tmp_path, temporal.address)
    await create_ledger(environment.engine)
    project = make_project(
        tmp_path / "project",
        {"rests": RESTS},
        [],
        address=temporal.address,
        connections={"shop": environment.url},
        ledger="shop",
    )
    async with await Client.connect(project) as client:
        saga_id = f"rests-{uuid.uuid4()}"
        queue = project.settings.temporal.task_queue
        await client.temporal.start_workflow("rests", {"card": CARD}, id=saga_id, task_queue=queue)
        async with serving(client) as url:
            yield Served(client, url, saga_id)
        await client.temporal.get_workflow_handle(saga_id).terminate()
    await environment.engine.dispose()


@contextlib.asynccontextmanager
async def slow_form(served: Served, browser: httpx.AsyncClient, path: str) -> AsyncIterator[None]:
    """A form of which the server waits for the end."""
    port = int(served.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection(HOST, port)
    lines = (
        f"POST {path} HTTP/1.1", f"Host: {HOST}:{port}", f"Origin: {served.url}", "Content-Length: 100",
        f"Content-Type: {FORM}", f"Cookie: {COOKIE}={browser.cookies[COOKIE]}", "Expect: 100-continue", "", "",
    )  # fmt: skip
    writer.write("\r\n".join(lines).encode())
    assert await asyncio.wait_for(reader.readline(), LIMIT) == b"HTTP/1.1 100 Continue\r\n", "it reads the body"
    yield
    writer.close()


async def test_a_slow_form_keeps_nobody_waiting(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "BODY_TIMEOUT", 10 * LIMIT)
    path = f"/sagas/{served.saga_id}"
    async with served.browser() as staff, served.browser() as chief:
        await served.sign_in(staff, TOKENS["STAFF"])
        form = await served.sign_in(chief, TOKENS["CHIEF"])
        async with slow_form(served, staff, "/console/sign-out"), slow_form(served, chief, f"/console{path}/cancel"):
            assert (await staff.get("/console/sagas")).status_code == 200
            headers = {"Authorization": f"Bearer {TOKENS['CHIEF']}"}
            assert (await staff.get(path, headers=headers)).status_code == 200
            looked = await chief.post(f"/console{path}/cancel", data={"form": form, "go": "look"})
            assert looked.status_code == 200, looked.text


KINDS = ("read", "start", "page", "operation")


async def test_no_request_takes_a_turn_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("READS", "STARTS", "PAGES", "OPERATIONS", "CALLBACKS"):
        monkeypatch.setattr(admission, f"MAX_CONCURRENT_{name}", 1)
    turns = Admission(max_waiting=1)
    async with contextlib.AsyncExitStack() as taken:
        for kind in KINDS:
            await taken.enter_async_context(getattr(turns, kind)("staff"))
        await taken.enter_async_context(turns.callback())
        monkeypatch.setattr(admission, "REQUEST_TIMEOUT", 0.01)
        for kind in KINDS:
            with pytest.raises(TimeoutError):
                await taken.enter_async_context(getattr(turns, kind)("staff"))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_token_with_many_requests_leaves_turns_to_others(kind: str) -> None:
    turns = Admission(max_waiting=1)
    served: list[str] = []
    busy, other_served = asyncio.Event(), asyncio.Event()

    async def ask(token: str) -> None:
        async with getattr(turns, kind)(token):
            served.append(token)
            if token == "other":
                other_served.set()
            await busy.wait()

    greedy = [asyncio.create_task(ask("greedy")) for _ in range(300)]
    await asyncio.sleep(0)
    other = asyncio.create_task(ask("other"))
    await asyncio.wait_for(other_served.wait(), LIMIT)
    assert served.count("greedy") <= 16
    busy.set()
    await asyncio.gather(other, *greedy)
    assert served.count("greedy") == 300


async def test_a_reason_is_masked_by_definitions_that_were_read_before(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served.browser() as chief:
        monkeypatch.setattr(
            project_module, "load_definitions", lambda *_: pytest.fail("the definitions are read again")
        )
        headers = {"Authorization": f"Bearer {TOKENS['CHIEF']}"}
        asked = {"reason": f"the card {CARD}"}
        answer = await chief.post(f"/sagas/{served.saga_id}/cancel", json=asked, headers=headers)
        assert (answer.status_code, answer.json()["response"]) == (200, "requested"), answer.text
    [access] = await served.client.locator.ledger.accesses(served.saga_id)
    assert (access.what, access.reason) == ("cancel", "the card •••")


async def test_a_token_of_other_letters(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    token = "Schlüssel-für-€-und-д-à"  # its last byte is a space in Latin-1
    monkeypatch.setenv("STAFF", token)
    async with served.browser() as staff:
        await served.sign_in(staff, token)
        answer = await staff.get(f"/sagas/{served.saga_id}", headers={b"Authorization": f"Bearer {token}".encode()})
        assert answer.status_code == 200
        assert re.search(r"Sign out", (await staff.get("/console/sagas")).text)
