"""A bank that accepts requests with 202, and whose test calls back at the addresses that came with them."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from saga_workers.client import Client
from saga_workers.runtime.http_server import HttpServer
from saga_workers.serve.api import SagaApi
from saga_workers.serve.api_tokens import Callers
from saga_workers.serve.project_sagas import ProjectSagas
from sagas import Rejected, Step, action
from sagas.project import Project
from sagas.settings import HttpService
from sagas.settings.secrets import Secret
from sagas.settings.serve import ServeSettings
from tests.helpers.database_servers import HOST
from tests.helpers.free_ports import free_port
from tests.helpers.local_worker import make_project
from tests.helpers.waiting import LIMIT, until


class AcceptingBank:
    """``requests``: what has arrived, in order. ``statuses``: of the responses to the next requests, then 202.
    ``heads``: what is sent in place of the next responses, with ``ADDRESS`` for the address of the callback.

    ``on_request``: called with each request before it is answered.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        self.heads: list[str] = []
        self.on_request = lambda request: None
        bank = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = {"path": self.path, "headers": headers, "json": json.loads(body)}
                bank.on_request(request)
                bank.requests.append(request)
                if bank.heads:
                    head = bank.heads.pop(0).replace("ADDRESS", headers["saga-callback"])
                    self.wfile.write(head.encode())
                    self.close_connection = True
                    return
                self.send_response(bank.statuses.pop(0) if bank.statuses else 202)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self.url = f"http://{HOST}:{self._server.server_address[1]}"

    def __enter__(self) -> AcceptingBank:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()

    def paths(self) -> list[str]:
        return [request["path"] for request in self.requests]

    def callbacks(self) -> list[str]:
        return [request["headers"]["saga-callback"] for request in self.requests]

    async def address(self, path: str = "/charges") -> str:
        """The address of the callback that came with the first request to this path."""
        await until(lambda: path in self.paths(), f"a request to {path}")
        return next(request["headers"]["saga-callback"] for request in self.requests if request["path"] == path)


async def call_back(address: str, value: Any, **options: Any) -> httpx.Response:
    """Send a callback, with a JSON value."""
    async with httpx.AsyncClient(timeout=LIMIT) as client:
        return await client.post(address, json=value, **options)


@action("ship")
async def ship(step: Step, possible: bool) -> None:
    if not possible:
        raise Rejected("out of stock")


CHARGE = """
saga: charge
input: {type: object, properties: {ship: {type: boolean, default: true}}}
steps:
  - id: charge
    uses: http
    with:
      connection: bank
      method: POST
      path: /charges
      json: {answer_to: "${{ step.callback_url }}"}
      callback:
        timeout: TIMEOUT
        done: default(response.json.status, '') == 'booked'
        rejected: default(response.json.status, '') == 'declined'
      result: response.json.id
    timeout: 2m
    retry: {max_attempts: 3, initial_interval: 100ms}
    compensate:
      uses: http
      with:
        connection: bank
        method: POST
        path: /refunds
        json: {charge: "${{ step.forward_key }}"}
        callback: {timeout: 10m}
  - {id: ship, uses: ship, with: {possible: "${{ input.ship }}"}, pivot: true}
output: {charge: "${{ steps.charge.result }}"}
"""


class CallbackProject:
    """A project with the saga `charge`, and `saga serve` at its address."""

    def __init__(self, folder: Path, address: str, bank: AcceptingBank, definition: str, timeout: str) -> None:
        crm = HttpService(name="bank", root=folder, url_setting=bank.url)
        text = definition.replace("TIMEOUT", timeout)
        project = make_project(folder, {"charge": text}, [ship], address=address, options={"bank": crm})
        self.port = free_port()
        serve = ServeSettings(token=Secret("env", "SERVE_TOKEN"), public_url=f"http://{HOST}:{self.port}")
        self.project = Project(project.settings.model_copy(update={"serve": serve}), project.actions)

    @contextlib.asynccontextmanager
    async def serving(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
        monkeypatch.setenv("SERVE_TOKEN", "a-token-that-nobody-guesses")
        settings = self.project.settings
        keys = settings.signing_keys()
        sagas = ProjectSagas(client.project, client.locator)
        api = SagaApi(client.locator, Callers(settings), None, sagas=sagas, settings=settings.serve, keys=keys)
        async with HttpServer(f"{HOST}:{self.port}", api.app, option="--listen", description="the API"):
            yield
