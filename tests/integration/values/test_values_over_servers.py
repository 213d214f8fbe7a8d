"""Hard values through real servers: over HTTP or Kafka, Temporal, a worker, PostgreSQL and a nested saga, and back."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
import pytest
from temporalio.client import Client as Temporal

from tests.helpers.database_servers import HOST, DatabaseServer
from tests.helpers.forked_commands import run_command
from tests.helpers.free_ports import free_port
from tests.helpers.kafka_broker import Broker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import CommandProcess, TemporalServer, TriggerProcess, WorkerProcess
from tests.helpers.waiting import LIMIT, until
from tests.integration.values.documents import FAMOUS
from tests.integration.values.oracle import Json, Number, read_json, same, write_json

TOML = """
actions = ["./actions.py"]
[temporal]
address = "{address}"
task_queue = "values-over-http"
[serve.tokens.shop]
secret = {{env = "SHOP_TOKEN"}}
scopes = ["read", "start"]
[connections.shop]
url = "{url}"
[kafka]
bootstrap_servers = "{kafka}"
outbox = "shop"
prefix = "values-over-servers"
"""
TOPIC = "values-over-servers-carried"
ACTIONS = """
import json
from typing import Any
from sagas import Message, action, consumer

@action("values.echo")
async def echo(value: Any = None) -> Any:
    return value

@consumer("values-over-servers-handled", connection="shop")
async def handle(message: Message) -> None:
    await message.sql.execute("insert into handled values (:value)", value=json.dumps(message.value))
"""
HANDLED = "values-over-servers-handled"
CARRIED = """
saga: carried
id: "${{ input.id }}"
input: {type: object, required: [id, docs], properties: {id: {type: string}, docs: {type: array}}}
steps:
  - {id: child, uses: saga, with: {name: part, input: {docs: "${{ input.docs }}"}}}
  - id: row
    uses: sql
    with:
      connection: shop
      run: "insert into kept values (:id, :docs::json) returning docs"
      params: {id: "${{ input.id }}", docs: "${{ input.docs }}"}
    pivot: true
output: {child: "${{ steps.child.result }}", row: "${{ steps.row.result[0].docs }}"}
triggers:
  kafka:
    topic: values-over-servers-carried
    id: "${{ trigger.key }}"
    input: {id: "${{ trigger.key }}", docs: "${{ trigger.value }}"}
"""
PART = """
saga: part
input: {type: object, required: [docs], properties: {docs: {type: array}}}
steps:
  - id: each
    uses: values.echo
    for_each: "${{ input.docs }}"
    with: {value: "${{ item }}"}
    effect: none
output: "${{ steps.each.results }}"
"""
EDGES = [str(sign * number) for number in (2**31, 2**53 + 1, 2**63, 2**64 + 1, 10**39 + 1) for sign in (1, -1)]
TEXTS = ["", "0012", "12.0", "null", "ÄÖ ß", "a\u2028b", "🦊", "'", '"', "\\n", "\n", "%s", ":v", "e\u0301", "9" * 400]
SAGAS, DOCUMENTS = 6, 12


def document(source: random.Random, depth: int = 0) -> Json:
    kind = source.randrange(6 if depth < 3 else 4)
    if kind < 2:
        return Number(source.choice([*FAMOUS, *EDGES, str(source.randint(-9, 9))]))
    if kind < 4:
        return source.choice([*TEXTS, True, False, None])
    if kind == 4:
        return [document(source, depth + 1) for _ in range(source.randrange(4))]
    return {source.choice(["a", "", "a.b", "ä", 'a"b', "1"]): document(source, depth + 1) for _ in range(3)}


@dataclass(frozen=True)
class Servers:
    """A project in ``folder``, its API, worker and trigger, and its database at ``url``."""

    client: httpx.AsyncClient
    url: str
    folder: Path
    temporal: Temporal

    async def started(self) -> tuple[int, ...]:
        """The number of runs in Temporal, and of rows that sagas and handlers have written."""
        query = "TaskQueue = 'values-over-http'"
        counts = [(await self.temporal.count_workflows(query)).count]
        with psycopg.connect(self.url) as connection:
            for table in ("kept", "saga_guard", "saga_outbox", "handled"):
                counts += connection.execute(f"select count(*) from {table}").fetchone() or ()  # pyright: ignore
        return tuple(counts)


@pytest.fixture(scope="module")
async def shop(
    temporal: TemporalServer, postgres_server: DatabaseServer, kafka: Broker, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Servers]:
    tmp_path, url = tmp_path_factory.mktemp("values"), new_database(postgres_server)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table kept (id text primary key, docs json)")
        connection.execute("create table handled (value text)")
    (tmp_path / "saga.toml").write_text(TOML.format(address=temporal.address, url=url, kafka=kafka.address))
    (tmp_path / "actions.py").write_text(ACTIONS)
    (tmp_path / "definitions").mkdir()
    for name, text in (("carried", CARRIED), ("part", PART)):
        (tmp_path / "definitions" / f"{name}.saga.yaml").write_text(text)
    port, env = free_port(), {"SHOP_TOKEN": "reads-and-starts"}
    for topic in (TOPIC, HANDLED):
        kafka.create_topic(topic)
        kafka.create_topic(f"{topic}.dlq")
    done = await asyncio.to_thread(run_command, ["setup"], tmp_path)
    assert done.returncode == 0, done.stderr
    worker = WorkerProcess("worker", tmp_path)
    serve = CommandProcess("serve", tmp_path, "serve", "--listen", f"{HOST}:{port}", env=env)
    trigger = TriggerProcess("trigger", tmp_path)
    worker.start()
    serve.start()
    trigger.start()
    headers = {"Authorization": "Bearer reads-and-starts", "content-type": "application/json"}
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}", headers=headers, timeout=60) as client:
        yield Servers(client, url, tmp_path, await Temporal.connect(temporal.address))
    trigger.kill()
    serve.kill()
    worker.kill()


def documents(seed: int, mark: str) -> dict[str, list[Json]]:
    source = random.Random(f"{seed} {mark}")
    return {f"{mark}-{seed}-{at}": [document(source) for _ in range(DOCUMENTS)] for at in range(SAGAS)}


def assert_arrived(url: str, sent: dict[str, list[Json]], outcomes: list[Json]) -> None:
    with psycopg.connect(url) as connection:
        rows = dict(connection.execute("select id, docs::text from kept").fetchall())
    for (id, docs), outcome in zip(sent.items(), outcomes, strict=True):
        assert outcome["state"] == "COMPLETED", (id, outcome)
        for place in ("child", "row"):
            assert same(outcome["output"][place], docs), (id, place, outcome["output"][place], docs)
        assert same(read_json(rows[id]), docs), (id, rows[id])


async def test_documents_of_http_arrive_as_they_were_sent(shop: Servers) -> None:
    client, url = shop.client, shop.url
    sent = documents(random.randrange(10**6), "http")

    async def start(id: str, docs: list[Json]) -> Json:
        body = write_json({"input": {"id": id, "docs": docs}, "wait": "50s"})
        answer = await client.post("/sagas/carried", content=body.encode())
        assert answer.status_code == 200, (id, answer.text)
        return read_json(answer.content)["outcome"]

    assert_arrived(url, sent, await asyncio.gather(*(start(id, docs) for id, docs in sent.items())))


async def test_documents_of_kafka_arrive_as_they_were_sent(shop: Servers, kafka: Broker) -> None:
    client, url = shop.client, shop.url
    sent = documents(random.randrange(10**6), "kafka")
    for id, docs in sent.items():
        await asyncio.to_thread(kafka.produce, TOPIC, write_json(docs).encode(), key=id)

    async def ended(id: str) -> Json:
        async with asyncio.timeout(LIMIT):
            while True:
                answer = await client.get(f"/sagas/{id}")
                if answer.status_code == 200 and read_json(answer.content)["state"] in ("COMPLETED", "COMPENSATED"):
                    return read_json(answer.content)
                await asyncio.sleep(0.1)

    assert_arrived(url, sent, await asyncio.gather(*map(ended, sent)))


@pytest.mark.parametrize(
    ("docs", "message"),
    [
        ('[{"a": 1, "a": 2}]', "appears twice in one object"),
        ("[NaN]", "NaN"),
        ("[1e999999999]", "digits"),
        ('["\\ud800"]', "surrogate"),
        ("[007]", ""),
    ],
)
async def test_what_is_refused_starts_nothing(shop: Servers, docs: str, message: str) -> None:
    client, url = shop.client, shop.url
    id = f"refused-{random.randrange(10**9)}"
    answer = await client.post("/sagas/carried", content=f'{{"input": {{"id": "{id}", "docs": {docs}}}}}'.encode())
    assert answer.status_code in (400, 422), answer.text
    assert message in answer.text
    assert (await client.get(f"/sagas/{id}")).status_code == 404
    with psycopg.connect(url) as connection:
        assert connection.execute("select 1 from kept where id = %s", (id,)).fetchone() is None


ROW = '{"id": "unreadable-%s", "docs": []}'
UNREADABLE = {
    "latin1.csv": "id,docs\nunreadable-1,[]\nunreadable-ä,[]\n".encode("latin-1"),
    "utf16.csv": "id,docs\nunreadable-2,[]\n".encode("utf-16"),
    "latin1.jsonl": f"{ROW}\n{ROW}\n".encode() % (b"3", b"\xe4"),
    "utf16.jsonl": (ROW % "4").encode("utf-16"),
    "latin1.json": f"[{ROW}, {ROW}]".encode() % (b"5", b"\xe4"),
    "cut.jsonl.gz": gzip.compress((ROW % "6").encode() + b"\n" + b"x" * 100_000)[:-20],
    "text.parquet": (ROW % "7").encode(),
}
"""Files whose first row is good, where there is a row."""


@pytest.mark.slow  # test_value_paths.py has the entries that are files
async def test_unreadable_files_start_nothing(shop: Servers) -> None:
    before = await shop.started()
    for name, content in UNREADABLE.items():
        (shop.folder / name).write_bytes(content)
    (shop.folder / "input.json").write_bytes((ROW % "ä").encode("latin-1"))
    options = [*(("--from", name) for name in UNREADABLE), ("--input", "@input.json")]
    for option, file in options:
        done = await asyncio.to_thread(run_command, ["start", "carried", option, file], shop.folder)
        message = done.stdout + done.stderr
        assert done.returncode == 2, (file, message)
        assert file.removeprefix("@") in message, message
        assert "Traceback" not in message, message
        assert "codec" not in message, message
    assert await shop.started() == before


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
async def test_an_unreadable_request_starts_nothing(shop: Servers, encoding: str) -> None:
    before = await shop.started()
    body = f'{{"input": {ROW % "ä"}}}'.encode(encoding)
    answer = await shop.client.post("/sagas/carried", content=body)
    assert (answer.status_code, "UTF-8" in answer.text) == (400, True), answer.text
    assert await shop.started() == before


async def test_unreadable_records_start_nothing_and_call_no_handler(shop: Servers, kafka: Broker) -> None:
    """The record behind them is handled, so they were read."""
    runs, kept, _, outbox, handled = await shop.started()
    records = [(ROW % "ä").encode("latin-1"), (ROW % "ä").encode("utf-16"), b"{"]
    last = f"readable-{random.randrange(10**9)}"
    for topic in (TOPIC, HANDLED):
        for number, record in enumerate(records):
            await asyncio.to_thread(kafka.produce, topic, record, key=f"unreadable-{number}")
    await asyncio.to_thread(kafka.produce, TOPIC, b"[]", key=last)
    await asyncio.to_thread(kafka.produce, HANDLED, b"[]", key=last)
    due = len(records)

    async def read() -> bool:
        counts = await shop.started()
        letters = [len(await asyncio.to_thread(kafka.read_committed, f"{topic}.dlq")) for topic in (TOPIC, HANDLED)]
        return counts[1] > kept and counts[4] > handled and min(letters) >= due

    await until(read)
    for topic in (TOPIC, HANDLED):
        letters = await asyncio.to_thread(kafka.read_committed, f"{topic}.dlq")
        assert sorted(letter.key or "" for letter in letters) == [f"unreadable-{number}" for number in range(due)]
    ended = await shop.started()
    assert (ended[1] - kept, ended[3] - outbox, ended[4] - handled) == (1, 0, 1)
    assert ended[0] - runs in (1, 2), "the readable record, and its nested saga"
