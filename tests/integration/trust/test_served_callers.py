"""Tokens of `saga serve`: each sees only the project's sagas, and no caller's inputs delay another's."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from urllib.parse import unquote

import httpx
import pytest

from saga_workers.client import Client
from saga_workers.runtime.http_server import HttpServer
from saga_workers.serve import api as serve_api
from saga_workers.serve import api_tokens
from saga_workers.serve.api import SagaApi
from saga_workers.serve.api_tokens import Callers, FailedTokens
from sagas.definition.input_validation import validate_input
from sagas.definition.model import Definition
from sagas.definition.saga_ids import workflow_id_problem
from sagas.project import Project
from sagas.settings.secrets import Secret
from sagas.settings.serve import ServeSettings, ServeToken
from tests.helpers.database_servers import HOST
from tests.helpers.local_worker import running_worker
from tests.integration.trust.conftest import Shop

TOKENS = {"SHOP": "shop-token-of-24-characters", "OTHER": "other-token-of-24-characters", "WEAK": "weak"}


@contextlib.asynccontextmanager
async def serving(shop: Shop, client: Client, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    tokens = {}
    for name, value in TOKENS.items():
        monkeypatch.setenv(name, value)
        tokens[name.lower()] = ServeToken(secret=Secret("env", name), scopes=("read", "start"))
    serve = ServeSettings(tokens=tokens, starts_per_second=1000)
    settings = shop.project.settings.model_copy(update={"serve": serve})
    project = Project(settings, shop.project.actions)
    own = Client(client.temporal, project)
    api = SagaApi(own.locator, Callers(settings), own, sagas=project.definitions, max_body_bytes=100_000)
    async with (
        HttpServer(f"{HOST}:0", api.app, option="--listen", description="the API") as server,
        httpx.AsyncClient(base_url=f"http://{HOST}:{server.port}", timeout=60) as caller,
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


def slow_list(definition: Definition) -> tuple[list[int], float]:
    """A valid list whose check takes a third of a second or more on this machine, or the longest; the seconds."""
    for length in (1_000, 2_000, 4_000, 8_000, 16_000, 32_000):
        items = [1] * length
        began = time.perf_counter()
        assert validate_input(definition, {"list": items})[1] == []
        if (seconds := time.perf_counter() - began) > 0.3:
            break
    return items, seconds


async def test_slow_inputs_delay_only_their_own_caller(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow inputs that are checked at once must not look as if Temporal did not answer."""
    (shop.project.settings.definitions[0] / "many.saga.yaml").write_text(MANY, encoding="utf-8")
    shop.project = Project(shop.project.settings, shop.project.actions)
    items, seconds = slow_list(shop.project.definition("many"))
    monkeypatch.setattr(serve_api, "CHECK_TIMEOUT", 10 * seconds)  # a check rests in between
    async with running_worker(shop.project) as client, serving(shop, client, monkeypatch) as caller:

        async def start(token: str, items: list[int]) -> httpx.Response:
            return await caller.post("/sagas/many", json={"input": {"list": items}}, headers=bearer(token))

        hostile = [asyncio.ensure_future(start("SHOP", items)) for _ in range(12)]
        await asyncio.sleep(seconds / 4)
        honest = await start("OTHER", [1])
        assert honest.status_code == 202
        assert sum(answer.done() for answer in hostile) <= 3, "it waits for none of them"
        answers = await asyncio.gather(*hostile)
        refused = [answer for answer in answers if answer.status_code == 503]
        assert 0 < len(refused) < 12
        assert all("too long to check" in answer.json()["error"] for answer in refused)
        assert all(answer.headers["retry-after"] == "5" for answer in refused)
        assert (await start("SHOP", [1])).status_code == 202
