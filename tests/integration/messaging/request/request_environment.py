"""A project whose sagas send commands, the database of their outbox, a relay, and a participant as a process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import sys
import textwrap
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client as Temporal

from saga_activities.connections import DatabaseConnections
from saga_activities.guard.schema import create_tables
from saga_workers.client import Client
from saga_workers.relay.relay_process import run_relay
from saga_workers.temporal.temporal_client import HeaderInterceptor
from saga_workers.trigger.dead_letters import DeadLetters
from saga_workers.trigger.replies import ReplyListener, reply_topics
from saga_workers.trigger.trigger_metrics import TriggerMetrics
from sagas.project import Project
from sagas.settings import SqlConnection, load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import Process, TemporalServer
from tests.helpers.waiting import until

PARTICIPANT = Path(__file__).with_name("participant.py")


@dataclass
class Environment:
    """One project folder, and what runs for it. ``prefix`` begins everything it has in Kafka."""

    folder: Path
    kafka: Broker
    prefix: str
    project: Project
    client: Client
    databases: DatabaseConnections
    listener: ReplyListener
    participant: Process
    commands: str = ""

    @property
    def engine(self) -> AsyncEngine:
        return self.databases.engine("shop")

    async def begin(self, saga: str, **input: Any) -> str:
        """Start a saga; gives its id."""
        return (await self.client.start(saga, input, id=f"{saga}-{uuid.uuid4().hex[:12]}")).id

    async def run_saga(self, saga: str, **input: Any) -> dict[str, Any]:
        """Start a saga and wait for its end; gives its story."""
        return await self.ended(await self.begin(saga, **input))

    async def ended(self, saga_id: str, timeout: str = "120s") -> dict[str, Any]:
        return await finished(self.client, saga_id, timeout)

    async def row(self, key: str) -> Mapping[str, Any] | None:
        """The row of a command in the outbox's database."""
        async with self.engine.connect() as connection:
            result = await connection.execute(text("select * from saga_request where step_key = :key"), {"key": key})
            row = result.mappings().first()
        return None if row is None else dict(row)

    async def token(self, key: str) -> str:
        """The token of a command, which its reply returns."""
        row = await self.row(key)
        assert row is not None
        return row["reply_token"]

    async def sent(self, saga_id: str) -> list[Mapping[str, Any]]:
        """The commands of a saga in the outbox, in their order."""
        async with self.engine.connect() as connection:
            result = await connection.execute(
                text("select * from saga_outbox where saga_id = :id order by id"), {"id": saga_id}
            )
            return [dict(row) for row in result.mappings()]

    async def waits(self, saga_id: str, step: str = "reserve") -> Mapping[str, Any]:
        """Wait until an attempt of the step waits for its reply; gives the row."""

        async def waiting() -> Mapping[str, Any] | None:
            row = await self.row(f"{saga_id}/{step}")
            return row if row is not None and row["token"] else None

        return await until(waiting)

    def seen(self, saga_id: str) -> list[str]:
        """Operations of a saga that the participant has received: ``do``, ``undo`` …"""
        return [op for _, op in self.received(saga_id)]

    def received(self, saga_id: str) -> list[tuple[str, str]]:
        with contextlib.closing(sqlite3.connect(self.folder / "participant.db")) as database:
            return database.execute("select key, op from commands where saga = ? order by rowid", (saga_id,)).fetchall()

    def effects(self, saga_id: str) -> list[str]:
        """The keys whose effect is there now."""
        with contextlib.closing(sqlite3.connect(self.folder / "participant.db")) as database:
            rows = database.execute("select key from effects where key like ?", (f"{saga_id}/%",)).fetchall()
        return sorted(key for (key,) in rows)

    def let_go(self, saga_id: str) -> None:
        """A held answer may leave now."""
        (self.folder / f"go-{saga_id}").touch()

    async def answer(
        self, key: str, outcome: str = "done", value: Any = None, *, topic: str | None = None, token: str | None = ""
    ) -> None:
        """A reply that does not come from the participant; ``token`` is by default that of the command, None: none."""
        token = await self.token(key) if token == "" else token
        headers = {"sagakey": key, "sagaoutcome": outcome} | ({} if token is None else {"sagatoken": token})
        self.kafka.produce(topic or f"{self.prefix}-replies", value, key=key, headers=headers)

    def new_listener(self) -> ReplyListener:
        settings = self.project.settings.kafka
        topics = reply_topics(self.project.definitions, settings.prefix)
        dead = DeadLetters(settings, TriggerMetrics())

        return ReplyListener(self.client.temporal, settings, self.databases, topics, dead_letter_sink=dead.send)


def write_project(
    folder: Path, definitions: Sequence[str], *, temporal: str, kafka: str, url: str, prefix: str, actions: str = ""
) -> None:
    """A project folder as a user has it; ``definitions`` are YAML texts, in which PREFIX stands for the prefix."""
    (folder / "definitions").mkdir(parents=True)
    for definition in definitions:
        plain = textwrap.dedent(definition).replace("PREFIX", prefix)
        name = plain.split("saga:", 1)[1].split()[0]
        (folder / "definitions" / f"{name}.saga.yaml").write_text(plain, encoding="utf-8")
    (folder / "saga_actions.py").write_text(textwrap.dedent(actions).replace("PREFIX", prefix), encoding="utf-8")
    (folder / "saga.toml").write_text(
        textwrap.dedent(
            f"""
            actions = ["./saga_actions.py"]
            [temporal]
            address = "{temporal}"
            namespace = "default"
            task_queue = "requests-{prefix}"
            [connections.shop]
            url = "{url}"
            [kafka]
            bootstrap_servers = "{kafka}"
            outbox = "shop"
            prefix = "{prefix}"
            [kafka.client]
            "session.timeout.ms" = 6000
            """
        ),
        encoding="utf-8",
    )


def start_participant(world_folder: Path, kafka: Broker, prefix: str, *topics: str) -> Process:
    """The participant, in a process of its own."""
    argv = [sys.executable, "-P", str(PARTICIPANT), kafka.address, str(world_folder), f"{prefix}-participant", *topics]
    ready = world_folder / "ready"
    return Process("participant", argv, world_folder, ready.exists, dict(os.environ)).start()


@contextlib.asynccontextmanager
async def open_environment(
    folder: Path,
    temporal: TemporalServer,
    kafka: Broker,
    database: DatabaseServer,
    *definitions: str,
    actions: str = "",
    serving: bool = True,
    listening: bool = True,
    **options: Any,
) -> AsyncIterator[Environment]:
    """Everything running. ``serving`` False: without a worker; ``options`` go to it."""
    prefix = f"t{uuid.uuid4().hex[:8]}"
    commands = f"{prefix}-commands"
    kafka.create_topic(commands)
    url = new_database(database)
    write_project(
        folder, definitions, temporal=temporal.address, kafka=kafka.address, url=url, prefix=prefix, actions=actions
    )
    project = Project(load_settings(folder))
    databases = DatabaseConnections([SqlConnection(name="shop", url_setting=project.settings.connection("shop").url)])
    await create_tables(databases.engine("shop"))
    participant = start_participant(folder, kafka, prefix, commands)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(databases.close)
        stack.callback(participant.kill)
        if serving:
            client = await stack.enter_async_context(running_worker(project, **options))
        else:
            client = Client(await Temporal.connect(temporal.address, interceptors=[HeaderInterceptor()]), project)
        env = Environment(folder, kafka, prefix, project, client, databases, None, participant, commands)  # pyright: ignore
        env.listener = env.new_listener()
        if listening:
            await stack.enter_async_context(running_listener(env.listener))
        stop = asyncio.Event()
        relay = asyncio.create_task(run_relay(project.settings, stop=stop))
        stack.push_async_callback(_end, relay, stop)
        yield env


@contextlib.asynccontextmanager
async def running_listener(listener: ReplyListener) -> AsyncIterator[ReplyListener]:
    """Run a listener as the process does."""
    stop = asyncio.Event()
    running = asyncio.create_task(listener.run(stop, 10.0))
    try:
        yield listener
    finally:
        stop.set()
        await running


async def _end(relay: asyncio.Task[None], stop: asyncio.Event) -> None:
    stop.set()
    await relay


async def resolve(env: Environment, saga_id: str, step: str, decision: str, **more: Any) -> None:
    """Send an operator decision as an update, signed by the project."""
    request = {"step": step, "decision": decision, "reason": "because", "who": "ada", **more}
    await env.client.resolve(saga_id, request)


def row_of(story: Mapping[str, Any], step: str) -> dict[str, Any]:
    return next(row for row in story["steps"] if row["id"] == step)
