"""More partitions, change data capture and headers: the same for triggers, consumers and bridges."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from saga_workers.temporal.temporal_client import connect
from saga_workers.temporal.temporal_runs import list_runs
from sagas import Message, bridge, consumer
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import fresh, open_shop, project_of, triggering

INSERT = "insert into effect (what, number) values (:what, :number)"

STARTED = """
    saga: {saga}
    input: {{type: object, required: [id], properties: {{id: {{type: integer}}}}}}
    triggers:
      kafka:
        topic: {topic}
        filter: trigger.value != null && trigger.value.op == "c"
        id: "{saga}-${{{{ trigger.value.after.id }}}}"
        input: "${{{{ trigger.value.after }}}}"
    steps:
      - {{id: there, uses: wait, with: {{signal: never, timeout: 1h, on_timeout: reject}}}}
"""


def _row(id: int) -> bytes:
    return json.dumps({"op": "c", "before": None, "after": {"id": id}}).encode()


def _add_partitions(kafka: Broker, topic: str, total: int) -> None:
    admin: Any = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_partitions([NewPartitions(topic, total)])[topic].result(30)


def _produce(kafka: Broker, topic: str, partition: int, *values: bytes | None, headers: Any = None) -> None:
    producer = Producer({"bootstrap.servers": kafka.address})
    for value in values:
        producer.produce(topic, value, "k", partition=partition, headers=headers)
    assert producer.flush(30) == 0


async def test_all_readers_take_them_alike(
    kafka: Broker, temporal: TemporalServer, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    """Partitions that are added while they read, and while they do not; tombstones; headers that cannot be read."""
    shop, topic, target, saga = await open_shop(postgres_server), kafka.create_topic(), kafka.create_topic(), fresh("c")

    @consumer(topic, connection="shop")
    async def mirror(message: Message) -> None:
        if message.value is not None and message.value["op"] == "c":
            await message.sql.execute(INSERT, what="mirror", number=message.value["after"]["id"])

    @bridge(topic, to=target)
    def copy(message: Message) -> object:
        return message.value["after"] if message.value is not None and message.value["op"] == "c" else None

    project = project_of(
        tmp_path,
        kafka.settings(outbox="shop"),
        temporal.address,
        definitions={saga: STARTED.format(saga=saga, topic=topic)},
        readers=[mirror, copy],
        connections={"shop": shop.url},
    )
    client = await connect(project.settings)

    async def have(*numbers: int) -> bool:
        runs = [run.id async for run in list_runs(client, f"WorkflowType = '{saga}'")]
        copied = await asyncio.to_thread(kafka.read_committed, target)
        return (
            sorted(int(run.rsplit("-", 1)[1]) for run in runs)
            == sorted(record.json()["id"] for record in copied)
            == sorted(number for _, number in shop.effects())
            == list(numbers)
        )

    deletion = json.dumps({"op": "d", "before": {"id": 1}, "after": None}).encode()
    _produce(kafka, topic, 0, _row(1), deletion, None)
    async with triggering(project):
        await until_in_thread(lambda: have(1))
        _add_partitions(kafka, topic, 2)
        _produce(kafka, topic, 1, _row(2))
        await until_in_thread(lambda: have(1, 2))
    _add_partitions(kafka, topic, 3)
    _produce(kafka, topic, 2, _row(3))
    _produce(kafka, topic, 0, _row(100), headers=[("ce_id", b"a"), ("ce_id", b"b")])
    _produce(kafka, topic, 0, _row(101), headers=[("ce_id", b"\xff")])
    _produce(kafka, topic, 0, _row(4), headers=[("team", b"a"), ("team", b"b"), ("other", b"\xff")])
    async with triggering(project):
        await until_in_thread(lambda: have(1, 2, 3, 4))
        await until_in_thread(lambda: len(kafka.read_committed(f"{topic}.dlq")) >= 6)
    reasons = sorted(record.headers["sagadlqreason"] for record in kafka.read_committed(f"{topic}.dlq"))
    twice = "the header ce_id is there twice with different values: send it once"
    assert reasons == sorted([twice, "the header ce_id is not UTF-8 text: correct its producer"] * 3)
