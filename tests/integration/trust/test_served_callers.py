"""Tokens of `saga serve`: each sees only the project's sagas, and no caller's inputs delay another's."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from saga_activities import input_checks
from saga_workers.client import Client
from saga_workers.runtime.http_server import HttpServer
from saga_workers.serve import api_tokens, request_body
from saga_workers.serve.api import SagaApi
from saga_workers.serve.api_tokens import Callers, FailedTokens
from saga_workers.serve.project_sagas import ProjectSagas
from sagas.definition.saga_ids import workflow_id_problem
from sagas.project import Project
from sagas.settings.secrets import Secret
from sagas.settings.serve import ServeSettings, ServeToken
from tests.helpers.database_servers import HOST
from tests.helpers.local_worker import running_worker
from tests.helpers.waiting import LIMIT
from tests.integration.trust.conftest import Shop

TOKENS = {"SHOP": "shop-token-of-24-characters", "OTHER": "other-token-of-24-characters", "WEAK": "weak"}


@contextlib.asynccontextmanager
async def serving(shop: Shop, client: Client, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    tokens = {}
    for name, value in TOKENS.items():
        monkeypatch.setenv(name, value)
        tokens[name.lower()] = ServeToken(secret=Secret("env", name), scopes=("read", "start"))
    serve = ServeSettings(tokens=tokens, starts_per_second=1000, max_body_bytes=100_000)
    settings = shop.project.settings.model_copy(update={"serve": serve})
    project = Project(settings, shop.project.actions)
    own = Client(client.temporal, project)
    sagas = ProjectSagas(project, own.locator)
    api = SagaApi(own.locator, Callers(settings), own, sagas=sagas, settings=settings.serve)
    async with (
        HttpServer(f"{HOST}:0", api.app, option="--listen", description="the API") as server,
        httpx.AsyncClient(base_url=f"http://{HOST}:{server.port}", timeout=LIMIT) as caller,
    ):
        yield caller
    await own.close()


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name]}"}


async def test_only_sagas_of_the_project_are_shown(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_worker(shop.project) as client, serving(shop, client, monkeypatch) as caller:
        run = await client.start("own", {"text": "x"})
        await run.result()
        foreign = await client.temporal.start_workflow(
            "payroll", {}, id=f"pay-{uuid.uuid4()}", task_queue=f"nobody-{uuid.uuid4()}"
        )
        await foreign.terminate("a secret reason")
        assert (await caller.get(f"/sagas/{run.id}", headers=bearer("SHOP"))).json()["state"] == "COMPLETED"
        for id in (foreign.id, "nobody-has-it", "%00", "a%00b", "x" * 1001):
            for page in ("", "/notifications"):
                answer = await caller.get(f"/sagas/{id}{page}", headers=bearer("SHOP"))
                assert answer.status_code == 404
                assert "secret" not in answer.text
                assert "SQL" not in answer.text
                if (problem := workflow_id_problem(unquote(id))) is not None:
                    assert answer.json() == {"error": problem}, "neither Temporal nor the ledger is asked"


async def test_wrong_tokens_are_limited(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_tokens, "WRONG_TOKENS_PER_SECOND", 0.001)  # a busy machine takes seconds for the guesses
    async with running_worker(shop.project) as client, serving(shop, client, monkeypatch) as caller:

        async def status(token: str) -> int:
            return (await caller.get("/openapi.json", headers={"Authorization": f"Bearer {token}"})).status_code

        assert await status(TOKENS["WEAK"]) == 200
        assert {await status(f"guess-{number}") for number in range(30)} == {401, 429}
        assert await status(TOKENS["WEAK"]) == 429, "guessed by now, perhaps"
        assert await status(TOKENS["SHOP"]) == 200, "nobody can guess it, and a proxy has many callers"


def test_addresses_are_counted_in_constant_memory() -> None:
    failed = FailedTokens(clock=lambda: 0.0)
    for number in range(20_000):
        failed.of(f"10.0.{number // 250}.{number % 250}").take()
    assert len(failed._buckets) == 4096
    assert failed.of("2001:db8::1") is failed.of("2001:db8::2")


MANY = """
saga: many
input:
  type: object
  properties:
    list:
      type: array
      items:
        anyOf:
          - {type: string}
          - {type: boolean}
          - {type: integer, minimum: 9}
          - {type: integer, minimum: 8}
          - {type: integer, minimum: 7}
          - {type: integer, minimum: 6}
          - {type: integer, minimum: 5}
          - {type: array}
          - {type: integer, maximum: 4}
steps:
  - {id: say, uses: say, with: {text: "x"}, effect: none}
"""


class HeldCheck:
    """Holds the first costly check until ``release`` is set, at a point where it lets other checks go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_held, self.release = threading.Event(), threading.Event()
        self._held: Any = None
        self._lock = threading.Lock()
        self._rest = input_checks._Pace.rest
        monkeypatch.setattr(input_checks._Pace, "rest", lambda pace: self._hold(pace))

    def _hold(self, pace: Any) -> None:
        with self._lock:
            self._held = self._held or pace
        if pace is self._held and not self.release.is_set():
            pace.__exit__()
            self.is_held.set()
            self.release.wait(LIMIT)
            pace.__enter__()
        self._rest(pace)


async def test_slow_inputs_delay_only_their_own_caller(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow inputs that are checked at once must not look as if Temporal did not answer."""
    (shop.project.settings.definitions[0] / "many.saga.yaml").write_text(MANY, encoding="utf-8")
    shop.project = Project(shop.project.settings, shop.project.actions)
    monkeypatch.setattr(request_body, "CHECK_TIMEOUT", LIMIT)
    slow, held = [1] * 2_000, HeldCheck(monkeypatch)
    async with running_worker(shop.project) as client, serving(shop, client, monkeypatch) as caller:

        async def start(token: str, items: list[int]) -> httpx.Response:
            return await caller.post("/sagas/many", json={"input": {"list": items}}, headers=bearer(token))

        patient = [asyncio.ensure_future(start("SHOP", slow)) for _ in range(3)]
        try:
            assert await asyncio.to_thread(held.is_held.wait, LIMIT)
            assert (await start("OTHER", [1])).status_code == 202
            assert (await start("OTHER", slow)).status_code == 202, "the check of another caller goes on meanwhile"
            monkeypatch.setattr(request_body, "CHECK_TIMEOUT", 0.2)
            refused = await asyncio.gather(*(start("SHOP", slow) for _ in range(9)))
            monkeypatch.setattr(request_body, "CHECK_TIMEOUT", LIMIT)
            assert {answer.status_code for answer in refused} == {503}
            assert all("too long to check" in answer.json()["error"] for answer in refused)
            assert all(answer.headers["retry-after"] == "5" for answer in refused)
            assert not any(answer.done() for answer in patient), "none of the answers has waited for them"
        finally:
            held.release.set()
        assert [answer.status_code for answer in await asyncio.gather(*patient)] == [202, 202, 202]
        assert (await start("SHOP", [1])).status_code == 202
