"""Secrets of the settings are in nothing that a run leaves: history, memo, views, reports, traces, logs."""

from __future__ import annotations

import gzip
import json
import os
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from saga_activities.guard.schema import create_tables
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.forked_commands import run_command
from tests.helpers.local_worker import finished
from tests.helpers.processes import TemporalServer, WorkerProcess
from tests.helpers.sampling import every_nth
from tests.integration.observability.shop import connect

SECRETS = {
    "DEFINITION_KEY": "canary-key-3f9c2a71d0b84e6695aa10c4",
    "CRM_TOKEN": "canary-token-8b1d",
    "CRM_SIGNING": "whsec_Y2FuYXJ5LXNpZ25pbmctNWUwYjdhOTJjNDFkNGY4M2I2YWE=",
    "HEADER_KEY": "canary-header-11c7",
    "SHOP_PASSWORD": "canary-password-90af",
    "GONE_PASSWORD": "canary-password-77de",
}

SETTINGS = """
definitions = ["."]
actions = ["./actions.py"]
[temporal]
address = "{address}"
task_queue = "secrets-{unique}"
[worker]
definition_key = {{env = "DEFINITION_KEY"}}
[connections.shop]
url = "{shop}"
[connections.gone]
url = "{gone}"
[connections.crm]
kind = "http"
url = "{crm}"
auth = {{bearer = {{env = "CRM_TOKEN"}}}}
signing_secret = {{env = "CRM_SIGNING"}}
headers = {{"x-api-key" = "canary-header-11c7"}}
"""

STEP = (
    "- {{id: {id}, uses: {uses}, with: {with_}, compensate: {{uses: forget, with: {{}}}}, retry: {{max_attempts: 1}}}}"
)
SAGAS = {
    "told": "{connection: crm, method: POST, path: /told, json: {a: 1}}",
    "echoed": "{connection: crm, method: POST, path: /echo, json: {a: 1}, rejected: [409]}",
    "broken": "{connection: crm, method: POST, path: /broken, json: {a: 1}}",
}

ACTIONS = """
import os

from sagas import action


@action("forget")
def forget() -> None: ...


@action("careless")
def careless() -> None:
    raise RuntimeError("cannot log in with " + os.environ["CRM_TOKEN"])
"""


class EchoingParticipant(BaseHTTPRequestHandler):
    """Repeats what it was sent, as careless error pages do."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.dumps({"detail": "you sent", "headers": dict(self.headers)}).encode()
        self.send_response({"/echo": 409, "/broken": 500}.get(self.path, 200))
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.path != "/told" else b"{}" + b" " * (len(body) - 2))

    def log_message(self, format: str, *args: object) -> None: ...


class TraceCollector(BaseHTTPRequestHandler):
    """Keeps what is exported as OTLP."""

    received: list[bytes]

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        self.received.append(gzip.decompress(data) if self.headers.get("content-encoding") == "gzip" else data)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def participant() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), EchoingParticipant)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def traces() -> Iterator[tuple[str, list[bytes]]]:
    received: list[bytes] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Collector", (TraceCollector,), {"received": received}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()


def write_project(folder: Path, address: str, shop: str, gone: str, crm: str) -> None:
    sql = "{connection: shop, run: select 1}"
    lost = "{connection: gone, run: select 1}"
    texts = {name: ("http", with_) for name, with_ in SAGAS.items()}
    texts |= {"stored": ("sql", sql), "lost": ("sql", lost), "careless": ("careless", "{}")}
    for name, (uses, with_) in texts.items():
        step = STEP.format(id="a", uses=uses, with_=with_).replace(
            "compensate", "timeout: 3s, compensate" if name == "lost" else "compensate"
        )
        (folder / f"{name}.saga.yaml").write_text(f"saga: {name}\nsteps:\n  {step}\n")
    (folder / "actions.py").write_text(ACTIONS)
    (folder / "saga.toml").write_text(
        SETTINGS.format(address=address, unique=uuid.uuid4(), shop=shop, gone=gone, crm=crm)
    )


async def test_no_secret_of_the_settings_is_in_what_runs_leave(
    tmp_path: Path,
    temporal: TemporalServer,
    postgres_server: DatabaseServer,
    participant: str,
    traces: tuple[str, list[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    shop = postgres_server.url().replace("postgresql://saga@", f"postgresql+psycopg://saga:{SECRETS['SHOP_PASSWORD']}@")
    gone = shop.replace(SECRETS["SHOP_PASSWORD"], SECRETS["GONE_PASSWORD"]).replace("saga:", "nobody:")
    write_project(tmp_path, temporal.address, shop, gone, participant)
    engine = create_async_engine(shop)
    await create_tables(engine)
    await engine.dispose()
    project = Project(load_settings(config=str(tmp_path / "saga.toml")))
    client = await connect(project, temporal)
    texts: dict[str, str] = {}
    env = {**SECRETS, "OTEL_EXPORTER_OTLP_ENDPOINT": traces[0], "OTEL_SERVICE_NAME": "secrets"}
    worker = WorkerProcess("worker", tmp_path, env=env)
    worker.start()
    try:
        states = {}
        for number, name in enumerate(("stored", "told", "echoed", "broken", "careless", "lost")):
            run = await client.start(name, {}, id=f"{name}-{uuid.uuid4()}")
            story = await finished(client, run.id)
            states[name] = story["state"]
            texts[f"view of {name}"] = json.dumps(story)
            handle = client.temporal.get_workflow_handle(run.id)
            texts[f"history of {name}"] = str((await handle.fetch_history()).events)
            described = await handle.describe()
            texts[f"memo of {name}"] = json.dumps(await described.memo()) + str(described.raw_description)
            forms = (["show", run.id], ["show", run.id, "--json"], ["list", "--json"])
            for words in every_nth(3, forms, turn=number):
                done = run_command(words, tmp_path, env={**os.environ, **env})
                texts[" ".join(words)] = str(done)
        for words in (["doctor"], ["doctor", "--json"], ["validate"], ["explain", "told"], ["parked"]):
            texts[" ".join(words)] = str(run_command(words, tmp_path, env={**os.environ, **env}))
    finally:
        worker.stop()
    texts["log of the worker"] = worker.log.read_text()
    texts["traces"] = "".join(data.decode("utf-8", "replace") for data in traces[1])
    assert states == dict.fromkeys(states, "COMPENSATED") | {"stored": "COMPLETED", "told": "COMPLETED"}
    assert texts["traces"], "no span was exported"
    leaks = {f"{place}: {name}" for place, text in texts.items() for name, value in SECRETS.items() if value in text}
    assert not leaks
