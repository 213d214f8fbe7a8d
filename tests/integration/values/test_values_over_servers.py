"""Hard values through real servers: over HTTP or Kafka, Temporal, a worker, PostgreSQL and a nested saga, and back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import httpx
import psycopg
import pytest

from tests.helpers.database_servers import HOST, DatabaseServer
from tests.helpers.forked_commands import run_command
from tests.helpers.free_ports import free_port
from tests.helpers.kafka_broker import Broker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import CommandProcess, TemporalServer, TriggerProcess, WorkerProcess
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
from typing import Any
from sagas import action

@action("values.echo")
async def echo(value: Any = None) -> Any:
    return value
"""
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


@pytest.fixture(scope="module")
async def shop(
    temporal: TemporalServer, postgres_server: DatabaseServer, kafka: Broker, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    tmp_path, url = tmp_path_factory.mktemp("values"), new_database(postgres_server)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table kept (id text primary key, docs json)")
    (tmp_path / "saga.toml").write_text(TOML.format(address=temporal.address, url=url, kafka=kafka.address))
    (tmp_path / "actions.py").write_text(ACTIONS)
    (tmp_path / "definitions").mkdir()
    for name, text in (("carried", CARRIED), ("part", PART)):
        (tmp_path / "definitions" / f"{name}.saga.yaml").write_text(text)
    port, env = free_port(), {"SHOP_TOKEN": "reads-and-starts"}
    kafka.create_topic(TOPIC)
    kafka.create_topic(f"{TOPIC}.dlq")
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
        yield client, url
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


async def test_documents_of_http_arrive_as_they_were_sent(shop: tuple[httpx.AsyncClient, str]) -> None:
    client, url = shop
    sent = documents(random.randrange(10**6), "http")

    async def start(id: str, docs: list[Json]) -> Json:
        body = write_json({"input": {"id": id, "docs": docs}, "wait": "50s"})
        answer = await client.post("/sagas/carried", content=body.encode())
        assert answer.status_code == 200, (id, answer.text)
        return read_json(answer.content)["outcome"]

    assert_arrived(url, sent, await asyncio.gather(*(start(id, docs) for id, docs in sent.items())))


async def test_documents_of_kafka_arrive_as_they_were_sent(shop: tuple[httpx.AsyncClient, str], kafka: Broker) -> None:
    client, url = shop
    sent = documents(random.randrange(10**6), "kafka")
    for id, docs in sent.items():
        await asyncio.to_thread(kafka.produce, TOPIC, write_json(docs).encode(), key=id)

    async def ended(id: str) -> Json:
        async with asyncio.timeout(60):
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
async def test_what_is_refused_starts_nothing(shop: tuple[httpx.AsyncClient, str], docs: str, message: str) -> None:
    client, url = shop
    id = f"refused-{random.randrange(10**9)}"
    answer = await client.post("/sagas/carried", content=f'{{"input": {{"id": "{id}", "docs": {docs}}}}}'.encode())
    assert answer.status_code in (400, 422), answer.text
    assert message in answer.text
    assert (await client.get(f"/sagas/{id}")).status_code == 404
    with psycopg.connect(url) as connection:
        assert connection.execute("select 1 from kept where id = %s", (id,)).fetchone() is None
