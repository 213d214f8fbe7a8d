"""A project with triggers and consumers, run in this process or in processes of its own, on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import textwrap
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from saga_workers.client import Client
from saga_workers.runtime.shutdown import run_tasks
from saga_workers.temporal.temporal_client import connect
from saga_workers.temporal.temporal_runs import describe_run
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from saga_workers.trigger.trigger_process import TriggerTasks, make_plan
from sagas.actions.consumers import HANDLER_ATTRIBUTE as READER
from sagas.actions.consumers import MessageHandlers
from sagas.actions.registry import ACTION_ATTRIBUTE as ACTION
from sagas.actions.registry import Actions
from sagas.project import Project
from sagas.settings import KafkaSettings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import finished, make_project
from tests.helpers.new_databases import new_database
from tests.helpers.waiting import until_in_thread

NOTE = """
    saga: {saga}
    input: {{type: integer, maximum: 1000}}
    triggers: {{kafka: {{topic: {topic}}}}}
    steps:
      - {{id: wait, uses: wait, with: {{signal: never, timeout: 1h, on_timeout: reject}}}}
"""
"""A saga that an event starts, and that waits."""


def project_of(
    folder: Path,
    kafka: KafkaSettings,
    address: str,
    *,
    definitions: Mapping[str, str] | None = None,
    actions: Sequence[Callable[..., Any]] = (),
    readers: Sequence[Callable[..., Any]] = (),
    connections: Mapping[str, str] | None = None,
) -> Project:
    """A project with Kafka; ``definitions`` are YAML texts by name."""
    texts = {name: textwrap.dedent(text) for name, text in (definitions or {}).items()}
    made = make_project(folder, texts, list(actions), address=address, connections=connections)
    project = Project(
        made.settings.model_copy(update={"kafka": kafka}),
        Actions([getattr(action, ACTION) for action in actions]),
        MessageHandlers([getattr(reader, READER) for reader in readers]),
    )
    errors = [diagnostic for diagnostic in project.diagnostics if diagnostic.severity == "error"]
    assert not errors, errors
    return project


@contextlib.asynccontextmanager
async def triggering(
    project: Project, *, grace: float = 10.0, start_from: str | None = None
) -> AsyncIterator[TriggerMetrics]:
    """Run all that the project reads, as `saga trigger` does, in this process."""
    todo = make_plan(project)
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        client = Client(await connect(project.settings), project) if todo.needs_temporal else None
        parts = TriggerTasks(project, client, stop, stack, start_from=start_from)
        running = asyncio.create_task(run_tasks(parts.make_tasks(todo, grace), stop))
        try:
            yield parts.metrics
        finally:
            stop.set()
            await running


def write_project(folder: Path, broker: Broker, *, temporal: str, database: str, prefix: str, module: str) -> Path:
    """The files of a project: saga.toml and its module of consumers."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "readers.py").write_text(textwrap.dedent(module), encoding="utf-8")
    (folder / "saga.toml").write_text(
        textwrap.dedent(
            f"""
            definitions = ["."]
            actions = ["./readers.py"]
            [temporal]
            address = "{temporal}"
            task_queue = "{prefix}"
            [connections.shop]
            url = "{database}"
            [kafka]
            bootstrap_servers = "{broker.address}"
            prefix = "{prefix}"
            # The shortest that the broker allows: a process that was killed is missed sooner.
            client = {{"session.timeout.ms" = "6000", "heartbeat.interval.ms" = "1000"}}
            """
        ),
        encoding="utf-8",
    )
    return folder


async def ended(client: Client, saga_id: str) -> dict[str, Any]:
    """The story of a saga that an event is about to start, when it is over or parked."""

    async def there() -> bool:
        return await describe_run(client.temporal, saga_id) is not None

    await until_in_thread(there)
    return await finished(client, saga_id)


def committed(broker: Broker, group: str, topic: str) -> dict[int, int]:
    """The committed offsets of a group, by partition."""
    return _committed(broker, group, topic, broker.offsets(topic))


def _committed(broker: Broker, group: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    asked = [TopicPartition(topic, partition) for partition in partitions]
    # Its own client, which never joins the group: the admin client crashes on a group that has committed nothing.
    client = Consumer({"bootstrap.servers": broker.address, "group.id": group, "enable.auto.commit": False})
    try:
        return {position.partition: position.offset for position in client.committed(asked, 30) if position.offset >= 0}
    except KafkaException as error:
        # The broker has only just started, or a transaction of a killed process with these offsets is still open.
        if error.args[0].retriable() or error.args[0].name() in ("NOT_COORDINATOR", "_TIMED_OUT"):
            return {}
        raise
    finally:
        client.close()


def fully_consumed(broker: Broker, group: str, topic: str) -> bool:
    """True when the group has committed everything the topic holds."""
    ends = broker.offsets(topic)  # each question to a broker is a new client: a hundredth of a second of a core
    there = _committed(broker, group, topic, ends)
    return all(there.get(partition, 0) == high for partition, (_, high) in ends.items())


def count(metrics: TriggerMetrics, name: str) -> float:
    """The sum of a metric over its labels."""
    return sum(sample.value for metric in metrics.collect() for sample in metric.samples if sample.name == name)


def produce_keyed(broker: Broker, topic: str, messages: Sequence[tuple[str | None, Any]], **headers: str) -> None:
    """Write records with a key each, in one go."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True, "linger.ms": 20})
    for key, value in messages:
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, text, key, headers=dict(headers))
        producer.poll(0)
    assert producer.flush(60) == 0


@dataclass(frozen=True)
class Shop:
    """A database with the engine's tables and one table of effects; ``connect`` looks at it from outside."""

    url: str

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, autocommit=True)

    def effects(self) -> list[tuple[str, int]]:
        """Effects of the handlers, (what, number), in the order of their inserts."""
        with self.connect() as connection:
            return connection.execute("select what, number from effect order by id").fetchall()

    def inbox(self) -> dict[str, int]:
        """How many messages there are of each status."""
        with self.connect() as connection:
            return dict(connection.execute("select status, count(*) from saga_inbox group by status").fetchall())

    def outbox(self, topic: str) -> list[tuple[str, dict[str, str], Any]]:
        """Key, headers and value of the events for a topic, in order."""
        with self.connect() as connection:
            rows = connection.execute(
                "select event_key, headers, value from saga_outbox where topic = %s order by id", (topic,)
            ).fetchall()
        return [(key, json.loads(headers), json.loads(value)) for key, headers, value in rows]


async def open_shop(server: DatabaseServer) -> Shop:
    shop = Shop(new_database(server))
    engine = open_engine("shop", shop.url, 1)
    await create_tables(engine)
    await engine.dispose()
    with shop.connect() as connection:
        connection.execute("create table effect (id bigserial primary key, what text, number int)")
    return shop


def fresh(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:8]}"
