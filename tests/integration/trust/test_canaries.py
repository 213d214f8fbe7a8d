"""`x-sensitive` values of an input are in no text that sagas of any kind of step leave, only in the data that they use.

The data: inputs, arguments, results and signals in Temporal's history, rows of the sagas, records of Kafka.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import threading
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psycopg
import pytest
from google.protobuf.json_format import MessageToDict

from saga_workers.client import Client
from saga_workers.serve.public_outcome import public_notifications, public_outcome
from sagas.project import Project
from sagas.protocol.saga_view import SagaView
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.forked_commands import run_command
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import finished
from tests.helpers.new_databases import new_database
from tests.helpers.processes import RelayProcess, TemporalServer, TriggerProcess, WorkerProcess
from tests.helpers.sampling import every_nth
from tests.helpers.waiting import until
from tests.integration.observability.shop import connect
from tests.integration.observability.test_secrets_of_a_run import traces as traces
from tests.integration.serve.served_console import TOKENS, serving

NAME = 'kanari \\ "Ünder" 77/a&b\'s'
PIN = 90210417
CARD = {"name": NAME, "pin": PIN, "owners": ["kanari-ada", "kanari-bob"], "limit": 71234.5}
MARKS = ("kanari", "90210417", "71234.5")

SETTINGS = """
definitions = ["."]
actions = ["./actions.py"]
[temporal]
address = "{address}"
task_queue = "canaries-{unique}"
[connections.shop]
url = "{shop}"
[connections.crm]
kind = "http"
url = "{crm}"
[ledger]
connection = "shop"
[enqueue]
connections = ["shop"]
[[reconcile.effects]]
connection = "shop"
table = "booking"
key = "id"
saga = "booked"
step = "a"
saga_id = "saga_id"
amounts = {{amount = "amount"}}
[spark]
master = "local[1]"
ledger = "shop"
[spark.conf]
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
[kafka]
bootstrap_servers = "{kafka}"
outbox = "shop"
prefix = "{prefix}"
"""

INPUT = """
input:
  type: object
  required: [card]
  properties:
    card:
      x-sensitive: true
      type: object
      required: [name, pin, owners, limit]
      properties: {name: {type: string}, pin: {type: integer}, owners: {type: array}, limit: {type: number}}
notify:
  - when: [completed, compensated, parked]
    uses: http
    intervals: [1s]
    with: {connection: crm, path: /hooks, json: {event: "${{ event }}", card: "${{ input.card }}"}}
"""

NUMBER = "${{ input.card.name }}"
CAST = (
    '{connection: shop, run: "select cast(cast(:name as text) as integer)", params: {name: "${{ input.card.name }}"}}'
)
UNDO = "compensate: {uses: careless.forget, with: {}}"
ONCE = "retry: {max_attempts: 1}"

STEPS = {
    "sql-fails": f"[{{id: a, uses: sql, with: {CAST}, {ONCE}, {UNDO}}}]",
    "sql-undo": "[{id: a, uses: sql, with: {connection: shop, run: select 1}, compensate: {uses: sql, with: "
    + CAST
    + "}}, {id: b, uses: careless.decline, with: {card: '${{ input.card }}'}, effect: none}]",
    "http-declined": "[{id: a, uses: http, with: {connection: crm, method: POST, path: /echo, "
    f"json: {{card: '${{{{ input.card }}}}'}}, rejected: [409]}}, {ONCE}, {UNDO}}}]",
    "http-broken": "[{id: a, uses: http, with: {connection: crm, method: POST, path: '/broken/${{ input.card.name }}', "
    f"query: {{q: '${{{{ input.card.name }}}}'}}}}, {ONCE}, {UNDO}}}]",
    "python-raises": f"[{{id: a, uses: careless.fail, with: {{card: '${{{{ input.card }}}}'}}, {ONCE}, {UNDO}}}]",
    "python-declines": "[{id: a, uses: careless.decline, with: {card: '${{ input.card }}'}, effect: none}]",
    "python-returns": "[{id: a, uses: careless.say, with: {card: '${{ input.card }}'}, effect: none}]\n"
    "output: {card: '${{ steps.a.result }}', twice: 'the ${{ input.card.name }}'}",
    "expression": f"[{{id: a, uses: careless.say, with: {{card: '${{{{ date(input.card.name) }}}}'}}, {UNDO}}}]",
    "requires": "[{id: a, uses: require, with: {that: '${{ input.card.pin < 5 }}', message: no}}]",
    "published": "[{id: a, uses: kafka.publish, with: {topic: TOPIC, value: '${{ input.card }}'}, pivot: true}]",
    "requested": "[{id: a, uses: kafka.request, timeout: 60s, "
    "with: {topic: TOPIC, reply_topic: TOPIC-replies, value: '${{ input.card }}'}, "
    "compensate: {uses: careless.forget, with: {}}}]",
    "each": "[{id: a, for_each: '${{ input.card.owners }}', uses: careless.fail, with: {card: '${{ item }}'}, "
    f"{ONCE}, {UNDO}}}]",
    "parent": "[{id: a, uses: saga, with: {name: child, input: {card: '${{ input.card }}'}}}]",
    "parent-parks": "[{id: a, uses: saga, with: {name: child-parks, input: {card: '${{ input.card }}'}}}]",
    "spark": "[{id: a, uses: spark, timeout: 5m, retry: {max_attempts: 1}, with: {job: 'jobs:fail', "
    "params: {card: '${{ input.card }}'}, output: {parquet: out/cards}}}]",
    "booked": "[{id: a, uses: sql, compensate: auto, with: {connection: shop, "
    "run: 'insert into booking (saga_id, amount) values (:saga, cast(cast(:amount as text) as numeric)) "
    "returning id, amount', "
    "params: {saga: '${{ saga.id }}', amount: '${{ string(input.card.limit) }}'}}}]",
    "waits": "[{id: a, uses: wait, with: {signal: approved}}]",
}
CHILD = "input: {type: object, properties: {card: {type: object, x-sensitive: true}}}\n"
CHILDREN = {
    "child": "[{id: x, uses: careless.decline, with: {card: '${{ input.card }}'}, effect: none}]",
    "child-parks": "[{id: x, uses: careless.decline, with: {card: '${{ input.card }}'}, on_failure: park, "
    "effect: none}]",
}
EVENTS = "triggers: {kafka: {topic: TOPIC-events}}\n"

ACTIONS = """
from sagas import Rejected, action


@action("careless.forget")
def forget() -> None: ...


@action("careless.say")
async def say(card: object) -> object:
    return card


@action("careless.fail")
async def fail(card: object) -> None:
    raise RuntimeError(f"{card!r} is not usable, see {card}")


@action("careless.decline")
async def decline(card: dict) -> None:
    raise Rejected(f"{card['name']} with {card['pin']} declined {card}", card=card, first=card["name"])
"""


JOBS = """
import contextlib

from pyspark.sql import functions


def fail(spark, inputs, card):
    told = functions.concat(functions.lit(card["name"]), functions.lit(" at "), functions.col("id").cast("string"))
    with contextlib.suppress(Exception):  # its JVM logs it
        spark.range(1).select(functions.raise_error(told)).collect()
    raise RuntimeError(f"{card!r} is not usable, see {card}")
"""


class Echo(BaseHTTPRequestHandler):
    """Repeats what it was sent, as careless error pages do."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        answer = self.path.encode() + b" said " + body
        self.send_response(409 if self.path.startswith("/echo") else 500)
        self.send_header("content-type", "text/plain")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def crm() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


DATA = {"input", "result", "lastHeartbeatDetails", "lastCompletionResult"}
"""Fields of Temporal's events whose payloads are data; those of failures, memos and summaries are texts. The details
of a rejection are data, too: compensations use them.
"""


def texts_of(node: Any) -> Iterator[str]:
    """The strings of an event with its decoded payloads, but those that are data."""
    if isinstance(node, dict):
        if set(node) >= {"metadata", "data"} and isinstance(node["data"], str):
            text = base64.b64decode(node["data"]).decode("utf-8", "replace")
            yield text.encode().decode("unicode_escape", "replace")
            return
        declined = (
            node.get("applicationFailureInfo", {}).get("type") == "Rejected" and "activityFailureInfo" not in node
        )
        for name, item in node.items():
            if declined and name == "applicationFailureInfo":
                continue
            if name not in DATA:
                yield from texts_of(item)
    elif isinstance(node, list):
        for item in node:
            yield from texts_of(item)
    elif isinstance(node, str):
        yield node


def write_project(folder: Path, **settings: str) -> None:
    topic = settings["prefix"]
    for name, steps in STEPS.items():
        events = EVENTS if name == "python-returns" else ""
        text = f"saga: {name}\n{events}{INPUT}steps: {steps}\n".replace("TOPIC", topic)
        (folder / f"{name}.saga.yaml").write_text(text, encoding="utf-8")
    for name, steps in CHILDREN.items():
        (folder / f"{name}.saga.yaml").write_text(f"saga: {name}\n{CHILD}steps: {steps}\n", encoding="utf-8")
    (folder / "actions.py").write_text(ACTIONS, encoding="utf-8")
    (folder / "jobs.py").write_text(JOBS, encoding="utf-8")
    (folder / "saga.toml").write_text(SETTINGS.format(**settings), encoding="utf-8")


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


async def history_texts(client: Client, id: str) -> str:
    handle = client.temporal.get_workflow_handle(id)
    history = await handle.fetch_history()
    described = await handle.describe()
    texts = [text for event in history.events for text in texts_of(MessageToDict(event))]
    texts += texts_of(MessageToDict(described.raw_description))
    return "\n".join([*texts, str(await described.memo())])


async def pages_of_console(client: Client, ids: Sequence[str], batch: str) -> dict[str, str]:
    """The pages of the console for somebody who may decide, by their addresses."""
    pages = ["", "/sagas", "/inbox", "/batches", f"/batches/{batch}"]
    for id in ids:
        path = f"/sagas/{quote(id, safe='')}"
        pages += every_nth(2, [path, f"{path}/graph.svg", f"{path}/databases"], turn=ids.index(id))
    shown = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in TOKENS.items():
            patch.setenv(name, value)
        async with (
            serving(client) as url,
            httpx.AsyncClient(base_url=url, timeout=60, headers={"Origin": url}) as browser,
        ):
            await browser.post("/console/sign-in", data={"token": TOKENS["CHIEF"]})
            inbox = await browser.get("/console/inbox")
            many = re.findall(r'href="(/console/[^"]*(?:resolve|decide)[^"]*)"', inbox.text)
            assert many, "there are parked sagas to decide about"
            for page in [*(f"/console{page}" for page in pages), *map(html.unescape, many)]:
                answer = await browser.get(page)
                assert answer.status_code in (200, 404), (page, answer.text)
                shown[f"page {page}"] = html.unescape(answer.text)
    return shown


async def test_no_text_has_a_sensitive_value(
    tmp_path: Path,
    temporal: TemporalServer,
    postgres_server: DatabaseServer,
    kafka: Broker,
    crm: str,
    traces: tuple[str, list[bytes]],
) -> None:
    prefix = f"canary-{uuid.uuid4().hex[:8]}"
    for topic in ("", "-replies", "-events"):
        kafka.create_topic(prefix + topic)
    url = new_database(postgres_server)
    database_url = url.replace("+psycopg", "")
    write_project(
        tmp_path,
        address=temporal.address,
        shop=url,
        crm=crm,
        kafka=kafka.address,
        prefix=prefix,
        unique=prefix,
    )
    with psycopg.connect(database_url) as database:
        database.execute("create table booking (id serial primary key, saga_id text, amount numeric)")
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": traces[0], "OTEL_SERVICE_NAME": "canaries"}
    assert (done := run_command(["setup"], tmp_path, env={**os.environ})).returncode == 0, done
    project = Project(load_settings(config=str(tmp_path / "saga.toml")))
    errors = [diagnostic for diagnostic in project.diagnostics if diagnostic.severity == "error"]
    assert not errors, "\n".join(map(str, errors))
    client = await connect(project, temporal)
    texts: dict[str, str] = {}
    states: dict[str, str] = {}
    with (
        WorkerProcess("worker", tmp_path, env=env) as worker,
        RelayProcess("relay", tmp_path) as relay,
        TriggerProcess("trigger", tmp_path) as trigger,
    ):
        runs = {name: (await client.start(name, {"card": CARD}, id=f"{name}-{prefix}")).id for name in STEPS}

        key = f"{runs['requested']}/a"

        def reply_token() -> str | None:
            query = "select reply_token from saga_request where step_key = %s and token is not null"
            with psycopg.connect(database_url) as database:
                row = database.execute(query, (key,)).fetchone()
            return None if row is None else row[0]

        headers = {"sagakey": key, "sagaoutcome": "rejected", "sagatoken": await until(reply_token)}
        refusal = {"reason": f"{NAME} declined", "details": {"card": CARD}}
        kafka.produce(f"{prefix}-replies", refusal, key=key, headers=headers)
        for event in ({"card": {**CARD, "pin": "kanari-pin"}}, {"card": "kanari"}):
            kafka.produce(f"{prefix}-events", event, key="k")
        await client.signal(runs["waits"], "approved", reject=f"{NAME} is not known")

        for name, id in runs.items():
            view = await finished(client, id)
            states[name] = view["state"]
            page_of = tmp_path / f"{name}.html"
            forms = [["show", id], ["show", id, "--json"], ["show", id, "--html", str(page_of)]]
            for words in every_nth(3, forms, turn=list(runs).index(name)):
                texts[" ".join(words[::2]) + name] = str(run_command(words, tmp_path, env={**os.environ}))
            if page_of.exists():
                texts[f"page of {name}"] = page_of.read_text(encoding="utf-8")
            shown = SagaView.from_json(view)
            texts[f"served outcome of {name}"] = str(public_outcome(shown)) + str(public_notifications(shown))
        with psycopg.connect(database_url) as database:
            row = "insert into saga_enqueued (saga, saga_id, input) values ('python-declines', %s, %s)"
            database.execute(row, [f"enqueued-{prefix}", json.dumps({"card": NAME})])
            database.execute(row.replace("declines", "returns"), [f"refused-{prefix}", json.dumps({"card": NAME})])
        rows = tmp_path / "rows.jsonl"
        rows.write_text(f"{json.dumps({'card': CARD})}\n" * 2)
        run_command(["start", "python-declines", "--from", str(rows), "--batch", prefix], tmp_path, env={**os.environ})

        def refused() -> bool:
            with psycopg.connect(database_url) as database:
                return database.execute("select 1 from saga_enqueued where status = 'NEW'").fetchone() is None

        await until(refused)
        with psycopg.connect(database_url) as database:
            database.execute("update booking set amount = 1")
        report, differences = tmp_path / "report.html", tmp_path / "differences.html"
        for words in (
            ["parked"],
            ["parked", "--json"],
            ["list", "--json"],
            ["list", "--stuck"],
            ["report", "--since", "1h", "--html", str(report)],
            ["report", "--since", "1h", "--json"],
            ["doctor"],
            ["batch", "show", prefix],
            ["batch", "show", prefix, "--json"],
            ["enqueued", "list"],
            ["reconcile", "--report", str(differences)],
            ["reconcile", "--json"],
            ["graph", "python-declines", "--run", runs["python-declines"]],
            ["graph", "parent-parks", "--run", runs["parent-parks"], "--format", "svg"],
        ):
            texts[" ".join(words)] = str(run_command(words, tmp_path, env={**os.environ}))
        for name, page_of in (("report", report), ("differences", differences)):
            texts[f"page of the {name}"] = page_of.read_text(encoding="utf-8")
        assert {
            "select * from booking" in texts[f"reconcile {form}"] for form in ("--json", f"--report {differences}")
        } == {True}
        assert f"refused-{prefix}" in texts["enqueued list"]
        assert "COMPENSATED" in texts[f"batch show {prefix}"]
        texts |= await pages_of_console(client, [*runs.values(), parked := f"{runs['parent-parks']}/a"], prefix)
        for id, step in ((runs["sql-undo"], "a"), (parked, "x")):
            decision = {"step": step, "decision": "skip", "reason": f"{NAME} agrees", "who": "me"}
            await client.resolve(id, decision)
        for name in ("sql-undo", "parent-parks"):
            view = await finished(client, runs[name])
            states[f"{name} resolved"] = view["state"]
            texts[f"resolved {name}"] = str(view)
        ids = [*runs.values(), f"{runs['parent']}/a", parked]
        async for run in client.temporal.list_workflows(f"TaskQueue = '{project.settings.temporal.task_queue}'"):
            ids.append(run.id)
        for id in dict.fromkeys(ids):
            texts[f"history of {id}"] = await history_texts(client, id)

        def dead() -> dict[str, int]:
            records = [*kafka.read_committed(f"{prefix}-events.dlq")]
            texts["dead letters"] = str([(record.key, record.headers) for record in records])
            return {"events": len(records)}

        await until(lambda: dead()["events"] == 2)
        texts |= {f"metrics {process.health_port}": page(process.health_port) for process in (worker, relay, trigger)}
    for process in (worker, relay, trigger):
        texts[f"log of {process.log.name}"] = process.log.read_text()
    logs = [file for file in (tmp_path / ".saga").rglob("*.log") if file.is_file()]
    texts |= {f"log {file}": file.read_text(encoding="utf-8") for file in logs}
    assert any("is not usable" in texts[f"log {file}"] for file in logs), "the runner has logged the job's error"
    assert any("••• at 0" in texts[f"log {file}"] for file in logs), "Spark has logged the error of a task"
    texts["traces"] = "".join(data.decode("utf-8", "replace") for data in traces[1])
    with psycopg.connect(database_url) as database:
        texts["ledger"] = str(database.execute("select * from saga_run").fetchall())
    assert {texts["ledger"] != "[]", texts["traces"] != "", "•••" in texts["traces"]} == {True}
    assert states == dict.fromkeys(STEPS, "COMPENSATED") | {
        "python-returns": "COMPLETED",
        "booked": "COMPLETED",
        "published": "COMPLETED",
        "sql-undo": "PARKED",
        "sql-undo resolved": "RESIDUE",
        "parent-parks": "RUNNING",
        "parent-parks resolved": "COMPLETED",
    }
    leaks = {
        f"{mark} in {place}": text[max(0, at - 200) : at + 100]
        for place, text in texts.items()
        for mark in MARKS
        if (at := text.find(mark)) >= 0
    }
    assert leaks == {}
