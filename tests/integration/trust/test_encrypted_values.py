"""`[codec]`: Temporal has no value of a saga in clear, and commands, workers and codec endpoint read them."""

from __future__ import annotations

import base64
import dataclasses
import json
import secrets
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql
from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from saga_activities.value_cipher import ValueCipher
from saga_workers.client import Client
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.temporal.payload_codec import EncryptingCodec
from saga_workers.views.saga_list import SagaFilter
from saga_workers.worker import worker_trust
from saga_workers.worker.plugin import SagaPlugin
from sagas.errors import UsageError
from sagas.project import Project
from sagas.protocol.payloads import MACHINE_QUERY
from sagas.settings import load_settings
from sagas.settings.codec import CodecKey
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.forked_commands import run_command
from tests.helpers.free_ports import free_port
from tests.helpers.local_worker import finished
from tests.helpers.new_databases import new_database
from tests.helpers.processes import CommandProcess, TemporalServer, WorkerProcess
from tests.helpers.waiting import until

CARD = {"name": "kanari ada", "pin": 90210417}
MARKS = (b"kanari", b"90210417")
TOKENS = {"UI_TOKEN": "decodes-for-the-web-ui", "READ_TOKEN": "reads-outcomes-only"}

TOML = """
definitions = ["."]
actions = ["./actions.py"]
[temporal]
address = "{address}"
namespace = "{namespace}"
task_queue = "encrypted-{unique}"
web_ui = "http://127.0.0.1:8233"
[connections.shop]
url = "{shop}"
[ledger]
connection = "shop"
[codec]
key = {{file = "codec.key"}}
[serve]
token = {{env = "READ_TOKEN"}}
[serve.tokens.web-ui]
secret = {{env = "UI_TOKEN"}}
scopes = ["decode"]
"""
INPUT = "input: {type: object, properties: {card: {type: object, x-sensitive: true}}}\n"
DEFINITIONS = {
    "returns": "[{id: a, uses: cards.say, with: {card: '${{ input.card }}'}, effect: none},"
    " {id: b, uses: saga, with: {name: child, input: {card: '${{ steps.a.result }}'}}}]\n"
    "output: '${{ steps.a.result }}'",
    "child": "[{id: a, uses: cards.say, with: {card: '${{ input.card }}'}, effect: none}]",
    "declined": "[{id: a, uses: cards.charge, with: {card: '${{ input.card }}'}, compensate: cards.refund},"
    " {id: b, uses: cards.decline, with: {card: '${{ input.card }}'}, effect: none}]",
    "waits": "[{id: a, uses: wait, with: {signal: approved}}]\noutput: '${{ steps.a.result }}'",
    "answered": "[{id: a, uses: works, task_queue: far, effect: none}]",
    "failed": "[{id: a, uses: fails, task_queue: far, effect: none}]",
    "parks": "[{id: a, uses: cards.decline, with: {card: '${{ input.card }}'}, on_failure: park, effect: none}]",
}
FOREIGN = ("answered", "failed")
"""The definitions whose steps are on a task queue without a worker."""

ACTIONS = """
from sagas import Rejected, Step, action

@action("cards.say")
async def say(card: object) -> object:
    return card

@action("cards.charge", connection="shop")
async def charge(step: Step, card: object) -> object:
    return {"charged": card}

@action("cards.refund", connection="shop")
async def refund(step: Step, card: object) -> None: ...

@action("cards.decline")
async def decline(card: dict) -> None:
    raise Rejected("declined", card=card)
"""


def new_key() -> str:
    return secrets.token_hex(32)


def write_project(folder: Path, temporal: TemporalServer, shop: str, namespace: str = "default") -> Project:
    for name, steps in DEFINITIONS.items():
        (folder / f"{name}.saga.yaml").write_text(f"saga: {name}\n{INPUT}steps: {steps}\n", encoding="utf-8")
    (folder / "actions.py").write_text(ACTIONS, encoding="utf-8")
    (folder / "codec.key").write_text(new_key(), encoding="utf-8")
    toml = TOML.format(address=temporal.address, namespace=namespace, unique=uuid.uuid4(), shop=shop)
    (folder / "saga.toml").write_text(toml, encoding="utf-8")
    assert (done := run_command(["setup"], folder)).returncode == 0, done
    return Project(load_settings(config=str(folder / "saga.toml")))


@pytest.fixture
def shop(postgres_server: DatabaseServer) -> str:
    return new_database(postgres_server)


@pytest.fixture
def project(tmp_path: Path, temporal: TemporalServer, shop: str) -> Project:
    return write_project(tmp_path, temporal, shop)


@asynccontextmanager
async def connected(project: Project) -> AsyncIterator[Client]:
    async with await Client.connect(project) as client:
        yield client


def tables(url: str) -> dict[str, bytes]:
    """The rows of the engine's tables, as PostgreSQL's COPY writes them, with binary columns as they are."""
    dumped = {}
    with psycopg.connect(url.replace("+psycopg", "")) as database:
        names = database.execute("select tablename from pg_tables where tablename like 'saga%'").fetchall()
        for (name,) in names:
            rows = database.execute(sql.SQL("select * from {}").format(sql.Identifier(name))).fetchall()
            dumped[name] = b"\n".join(
                each if isinstance(each, bytes) else str(each).encode() for row in rows for each in row
            )
    return dumped


def everything(message: Any) -> bytes:
    return message.SerializeToString()


async def test_neither_temporal_nor_the_tables_have_a_value_in_clear(
    project: Project, tmp_path: Path, shop: str
) -> None:
    states: dict[str, str] = {}
    with WorkerProcess("worker", tmp_path):
        async with connected(project) as client:
            names = [name for name in DEFINITIONS if name not in FOREIGN]
            runs = {name: (await client.start(name, {"card": CARD}, id=f"{name}-{uuid.uuid4()}")).id for name in names}
            await client.signal(runs["waits"], "approved", CARD)
            for name, id in runs.items():
                states[name] = (await finished(client, id))["state"]
            decision = {"step": "a", "decision": "skip", "reason": f"{CARD['name']} agrees", "who": "me"}
            await client.resolve(runs["parks"], decision)
            states["resolved"] = (await finished(client, runs["parks"]))["state"]
            assert await client.temporal.get_workflow_handle(runs["returns"]).result() == CARD
            shown = run_command(["show", runs["returns"], "--json"], tmp_path)
            assert json.loads(shown.stdout)["input"] == {"card": "•••"}
            assert runs["waits"] in run_command(["list"], tmp_path).stdout
            leaks = {}
            for id in (*runs.values(), f"{runs['returns']}/b"):
                handle = client.temporal.get_workflow_handle(id)
                history = b"".join(everything(event) for event in (await handle.fetch_history()).events)
                described = everything((await handle.describe()).raw_description)
                leaks |= {f"{mark!r} of {id}": text for text in (history, described) for mark in MARKS if mark in text}
            assert leaks == {}
    rows = tables(shop)
    assert (b"saga:encrypted" in rows["saga_guard"], b"saga:encrypted" in rows["saga_run"]) == (True, True)
    assert {f"{mark!r} in {table}" for table, data in rows.items() for mark in MARKS if mark in data} == set()
    assert states == {
        "returns": "COMPLETED",
        "child": "COMPLETED",
        "declined": "COMPENSATED",
        "waits": "COMPLETED",
        "parks": "PARKED",
        "resolved": "COMPLETED",
    }


@pytest.mark.slow
async def test_values_of_an_earlier_key_are_read_as_long_as_it_is_there(project: Project, tmp_path: Path) -> None:
    key_file, earlier = tmp_path / "codec.key", (tmp_path / "codec.key").read_text()
    saga_id = f"rotated-{uuid.uuid4()}"
    with WorkerProcess("worker", tmp_path):
        async with connected(project) as client:
            await client.start("waits", {}, id=saga_id)
            await until_waiting(client, saga_id)
    later = new_key()
    async with connected(project) as client:  # with the earlier key
        key_file.write_text(later)
        with WorkerProcess("without", tmp_path) as worker:
            await client.signal(saga_id, "approved", CARD)
            why = "which [codec] key of this worker does not have"
            assert why in await until(lambda: stuck(client, saga_id))
            assert why in str((await client.show(saga_id))["incomplete"]), "as the list says, whatever a query meets"
    assert "which [codec] key of this worker does not have" in worker.log.read_text()
    key_file.write_text(f"{later}\n{earlier}")
    with WorkerProcess("with", tmp_path):
        async with connected(project) as client:
            assert (await finished(client, saga_id))["output"]["data"] == CARD


async def until_waiting(client: Client, saga_id: str) -> None:
    async def waits() -> bool:
        steps = (await client.show(saga_id))["steps"]
        return bool(steps) and steps[0]["state"] == "RUNNING"

    await until(waits)


async def stuck(client: Client, saga_id: str) -> str | None:
    listed = [
        str(view.to_json()) async for view in list_stuck(client.locator, SagaFilter(id_prefix=saga_id), limit=100)
    ]
    return next((text for text in listed if saga_id in text and "workflow task" in text), None)


async def test_a_value_that_no_key_has_made_stops_no_saga(project: Project, tmp_path: Path) -> None:
    saga_id = f"forged-{uuid.uuid4()}"
    with WorkerProcess("worker", tmp_path):
        async with connected(project) as client:
            await client.start("waits", {}, id=saga_id)
            await until_waiting(client, saga_id)
            [real] = await client.temporal.data_converter.encode([CARD])
            forged = Payload(metadata=dict(real.metadata), data=real.data[:-1] + bytes([real.data[-1] ^ 1]))
            stranger = await Temporal.connect(str(project.settings.temporal.address))
            await stranger.get_workflow_handle(saga_id).signal("approved", RawValue(forged))
            await with_codec_of_its_own(stranger).start_workflow(
                "waits", CARD, id=f"{saga_id}-strange", task_queue="nobody", memo={"saga": {"state": "COMPLETED"}}
            )
            assert saga_id in run_command(["list"], tmp_path).stdout
            await client.signal(saga_id, "approved", CARD)
            assert (await finished(client, saga_id))["output"]["data"] == CARD


async def test_a_value_with_a_key_that_nobody_has_stops_no_saga(
    project: Project, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_trust, "KEY_WAIT", 0.0)
    address, queue = str(project.settings.temporal.address), str(project.settings.temporal.task_queue)
    evil = Payload(metadata={"encoding": b"binary/encrypted", "encryption-key-id": b"evil"}, data=bytes(40))
    stranger = await Temporal.connect(address)

    @activity.defn(dynamic=True)
    async def answer(_: Sequence[RawValue]) -> RawValue:
        if activity.info().activity_type == "fails":
            raise ApplicationError("no", RawValue(evil), non_retryable=True)
        return RawValue(evil)

    async with (
        Worker(stranger, task_queue="far", activities=[answer]),
        Worker(
            await Temporal.connect(address, plugins=[SagaPlugin(project)]),
            task_queue=queue,
            max_cached_workflows=0,  # every task replays what was ignored
        ),
        connected(project) as client,
    ):
        waiting = await client.start("waits", {})
        run = stranger.get_workflow_handle(waiting.id)
        for _ in range(2):
            await run.signal("approved", RawValue(evil))
            await until_waiting(client, waiting.id)
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await run.execute_update("cancel", RawValue(evil))
        assert "encrypted with the key evil" in str(refused.value.cause)
        with pytest.raises(WorkflowQueryFailedError):
            await run.query(MACHINE_QUERY, RawValue(evil))
        early = await stranger.start_workflow(
            "waits", {}, id=f"early-{uuid.uuid4()}", task_queue=queue, start_signal="approved",
            start_signal_args=[RawValue(evil)], memo={"strange": RawValue(evil)},
        )  # fmt: skip
        for saga_id in (waiting.id, early.id):
            await client.signal(saga_id, "approved", CARD)
            assert (await finished(client, saga_id))["output"]["data"] == CARD
        for name in ("answered", "failed"):
            story = await finished(client, (await client.start(name, {})).id)
            assert story["reason"]["type"] == "UndecodedAnswer", story
        for saga_id in (waiting.id, early.id):
            history = client.temporal.get_workflow_handle(saga_id).fetch_history_events()
            failed = [event async for event in history if event.HasField("workflow_task_failed_event_attributes")]
            assert not failed
    warned = [record for record in caplog.records if "signals are ignored" in record.message]
    assert len(warned) == 2, warned


async def test_a_large_input_is_read_from_an_encrypted_history(project: Project) -> None:
    large = {"card": {**CARD, "notes": ["x" * 1000] * 200}}
    temporal = await Temporal.connect(str(project.settings.temporal.address), plugins=[SagaPlugin(project)])
    queue = str(project.settings.temporal.task_queue)
    async with Worker(temporal, task_queue=queue):
        handle = await temporal.start_workflow("returns", large, id=f"large-{uuid.uuid4()}", task_queue=queue)
        assert await handle.result() == large["card"]


def with_codec_of_its_own(client: Temporal) -> Temporal:
    codec = EncryptingCodec(ValueCipher([CodecKey("strange", secrets.token_bytes(32))]))
    converter = dataclasses.replace(DataConverter.default, payload_codec=codec)
    return Temporal(**{**client.config(), "data_converter": converter})  # pyright: ignore[reportArgumentType]


async def test_the_client_of_an_own_worker_must_encrypt(project: Project) -> None:
    plugin = SagaPlugin(project)
    address = str(project.settings.temporal.address)
    without = await Temporal.connect(address)
    with pytest.raises(UsageError, match="the client of this worker does not"):
        Worker(without, task_queue="own", plugins=[plugin])
    connected = await Temporal.connect(address, plugins=[plugin])
    [payload] = await connected.data_converter.encode([CARD])
    assert payload.metadata["encoding"] == b"binary/encrypted"


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    port = free_port()
    with CommandProcess("serve", folder, "serve", "--listen", f"127.0.0.1:{port}", env=TOKENS):
        yield f"http://127.0.0.1:{port}/codec"


def asked(address: str, operation: str, payloads: list[Payload], token: str | None = "UI_TOKEN") -> httpx.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {TOKENS[token]}"}
    body = {"payloads": [written(payload) for payload in payloads]}
    return httpx.post(f"{address}/{operation}", json=body, headers=headers)


def posted(url: str, payloads: list[Any]) -> Any:
    return httpx.post(url, json={"payloads": payloads}).json()


def written(payload: Payload) -> dict[str, Any]:
    metadata = {name: base64.b64encode(value).decode() for name, value in payload.metadata.items()}
    return {"metadata": metadata, "data": base64.b64encode(payload.data).decode()}


def output_of(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


async def test_the_codec_endpoint_serves_the_cli_and_the_web_ui_of_temporal(project: Project, tmp_path: Path) -> None:
    saga_id = f"served-{uuid.uuid4()}"
    with serving(tmp_path) as address, WorkerProcess("worker", tmp_path):
        async with connected(project) as client:
            await client.start("returns", {"card": CARD}, id=saga_id)
            assert (await finished(client, saga_id))["state"] == "COMPLETED"
        words = ["workflow", "show", "--workflow-id", saga_id, "--address", str(project.settings.temporal.address)]
        auth = ["--codec-endpoint", address, "--codec-auth", f"Bearer {TOKENS['UI_TOKEN']}"]
        temporal = str(Path(sys.executable).with_name("temporal"))
        clear, hidden = (output_of([temporal, *words, *more]) for more in (auth, []))
        assert "kanari ada" in clear
        assert "kanari ada" not in hidden

        [payload] = DataConverter.default.payload_converter.to_payloads([CARD])
        [encrypted] = asked(address, "encode", [payload]).json()["payloads"]
        assert base64.b64decode(encrypted["metadata"]["encoding"]) == b"binary/encrypted"
        assert posted(f"{address}/{TOKENS['UI_TOKEN']}/decode", [encrypted]) == {"payloads": [written(payload)]}


def test_the_codec_endpoint_refuses_strangers_and_what_it_cannot_read(project: Project, tmp_path: Path) -> None:
    with serving(tmp_path) as address:
        [payload] = DataConverter.default.payload_converter.to_payloads([CARD])
        assert asked(address, "decode", [payload], None).status_code == 401
        assert asked(address, "decode", [payload], "READ_TOKEN").status_code == 403
        assert httpx.post(f"{address}/wrong-token/decode", json={"payloads": []}).status_code == 401
        assert asked(address, "decipher", [payload]).status_code == 404
        other = Payload(metadata={"encoding": b"binary/encrypted", "encryption-key-id": b"other"}, data=b"x" * 40)
        unknown = asked(address, "decode", [other])
        assert (unknown.status_code, "the key other" in unknown.json()["error"]) == (422, True)
        headers = {"Authorization": f"Bearer {TOKENS['UI_TOKEN']}"}
        for body in ("{", "[]", '{"payloads": 1}', '{"payloads": [{"data": "%"}]}', '{"payloads": [{"metadata": []}]}'):
            assert httpx.post(f"{address}/decode", content=body, headers=headers).status_code == 400, body
        many = httpx.post(f"{address}/decode", content='{"payloads": [' + "{}," * 100_000 + "{}]}", headers=headers)
        assert (many.status_code, "send several requests" in many.text) == (413, True)
        preflight = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type,x-namespace",
        }
        pages = {
            origin: allowed_origin(address, origin, preflight) for origin in ("http://127.0.0.1:8233", "http://evil")
        }
        assert pages == {"http://127.0.0.1:8233": "http://127.0.0.1:8233", "http://evil": None}
        beside = httpx.options(address.replace("/codec", "/sagas/returns"), headers={"Origin": "http://127.0.0.1:8233"})
        assert beside.status_code == 405


def allowed_origin(address: str, origin: str, headers: dict[str, str]) -> str | None:
    answer = httpx.options(f"{address}/decode", headers={"Origin": origin, **headers})
    return answer.headers.get("access-control-allow-origin")
