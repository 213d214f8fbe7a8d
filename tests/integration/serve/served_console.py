"""A console with a saga in each of these states: completed, parked, compensated, running."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from saga_activities.ledger.schema import create_ledger
from saga_workers.client import Client
from saga_workers.location.locator import Locator
from saga_workers.runtime.http_server import HttpServer
from saga_workers.serve.api import SagaApi
from saga_workers.serve.api_tokens import Callers
from saga_workers.serve.operations import Operations
from saga_workers.serve.project_sagas import ProjectSagas
from sagas import Rejected
from sagas.project import Project
from sagas.settings.secrets import Secret
from sagas.settings.serve import ServeSettings, ServeToken
from tests.helpers.database_servers import HOST
from tests.helpers.waiting import LIMIT
from tests.integration.engine.environment import begin, open_environment, run_saga

TOKENS = {
    "STAFF": "staff-token-of-24-characters",
    "SHOP": "shop-token-of-24-characters",
    "CHIEF": "chief-token-of-24-characters",
}
SCRIPT = "<script>alert(1)<script>\"'><img src=x onerror=alert(2)>{{ 7 * 7 }}"
RIGHT_TO_LEFT = "\u202edesrever\u2066"
LONG = "x" * 10_000
CARD = "4111-1111-2222-3333"

ORDER = """
    saga: order
    input: {type: object, properties: {customer: {type: string}, card: {type: string, x-sensitive: true}}}
    labels: {customer: "${{ input.customer }}"}
    steps:
      - {id: reserve, name: Reserve the room, uses: work, compensate: unwork}
      - {id: pay, uses: work, effect: none, on_failure: compensate}
      - id: tell
        uses: work
        with: {value: {card: "${{ default(input.card, '') }}", to: "${{ input.customer }}"}}
        compensate: unwork
        on_failure: park
"""
WAITS = """
    saga: waits
    steps:
      - {id: book, name: Book the room, uses: book, compensate: unbook}
      - {id: approve, uses: wait, with: {for: 1h}}
"""
RESTS = """
    saga: rests
    steps:
      - {id: hold, name: Hold the room, uses: work, compensate: unwork}
      - {id: approve, uses: wait, with: {for: 1h}}
"""
RISKS = """
    saga: risks
    steps:
      - {id: block, uses: work, compensate: unwork}
      - {id: charge, uses: work, pivot: true, on_failure: park}
"""
SOLD_OUT = """
    saga: sold-out
    steps:
      - {id: check, uses: require, with: {that: false, message: sold out}}
"""


@dataclass(frozen=True)
class ServedConsole:
    """A console with a saga in each of these states."""

    client: Client
    url: str
    ids: dict[str, str]

    def browser(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=LIMIT, headers={"Origin": self.url})

    @contextlib.asynccontextmanager
    async def signed_in(self, token: str = "STAFF") -> AsyncIterator[httpx.AsyncClient]:
        async with self.browser() as browser:
            answer = await browser.post("/console/sign-in", data={"token": TOKENS[token]})
            assert (answer.status_code, answer.headers["location"]) == (303, "/console")
            yield browser

    def page(self, state: str, rest: str = "") -> str:
        return f"/console/sagas/{quote(self.ids[state], safe='')}{rest}"


@contextlib.asynccontextmanager
async def serving(client: Client, *, console: bool = True, starts: bool = False) -> AsyncIterator[str]:
    """The API for the project of a client, which ``starts`` sagas or does not; gives its address."""
    tokens = {
        "staff": ServeToken(secret=Secret("env", "STAFF"), scopes=("read",)),
        "shop": ServeToken(secret=Secret("env", "SHOP"), scopes=("start",)),
        "chief": ServeToken(secret=Secret("env", "CHIEF"), scopes=("read", "operate")),
    }
    settings = client.project.settings.model_copy(update={"serve": ServeSettings(tokens=tokens, console=console)})
    project = Project(settings, client.project.actions)
    assert project.definitions  # read before the first request, as by the process
    locator = Locator(client.temporal, client.locator.ledger, settings, project=project)
    served = ProjectSagas(project, locator)
    api = SagaApi(
        locator,
        Callers(settings),
        client if starts else None,
        sagas=served,
        settings=settings.serve,
        operations=Operations(locator, project, served),
        project=project,
    )
    async with HttpServer(f"{HOST}:0", api.app, option="--listen", description="the API") as server:
        yield f"http://{HOST}:{server.port}"


@contextlib.asynccontextmanager
async def open_console(folder: Path, address: str) -> AsyncIterator[ServedConsole]:
    """A worker and a console for five definitions."""
    environment = await open_environment(folder, address)
    environment.plan["do pay"] = [1, 1, Rejected(SCRIPT + RIGHT_TO_LEFT), 1]
    environment.plan["do tell"] = [1, Rejected(f"{SCRIPT} {RIGHT_TO_LEFT} {LONG}"), Rejected("closed on Sundays"), 1]
    environment.plan["do charge"] = [Rejected("the line was busy")]
    environment.plan["undo block"] = [Rejected("nobody was there")]
    environment.ledger = "shop"
    await create_ledger(environment.engine)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in TOKENS.items():
            patch.setenv(name, value)
        async with environment.serving(ORDER, WAITS, RESTS, RISKS, SOLD_OUT) as client:
            hostile = f"{SCRIPT} {uuid.uuid4()}"
            ids = {
                "COMPLETED": (await run_saga(client, "order", {"customer": "ada"}))["id"],
                "PARKED": (await run_saga(client, "order", {"customer": SCRIPT, "card": CARD}, id=hostile))["id"],
                "COMPENSATED": (await run_saga(client, "order", {"customer": "bob"}))["id"],
                "RUNNING": await begin(client, "waits"),
            }
            async with serving(client) as url:
                yield ServedConsole(client, url, ids)
    await environment.engine.dispose()


def form_token(page: str) -> str:
    """The token that each form of a session has."""
    match = re.search(r'name="form" value="([^"]+)"', page)
    assert match, page
    return match[1]
