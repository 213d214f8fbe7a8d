"""A project whose steps emit events, its databases, and workers for it: in this process, or as one of their own."""

from __future__ import annotations

import contextlib
import textwrap
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client as Temporal

from saga_activities.concurrency import Backoff
from saga_activities.connections import DatabaseConnections
from saga_activities.guard.schema import create_tables
from saga_workers.client import Client
from saga_workers.relay.check_back import CheckBack
from saga_workers.temporal.temporal_client import HeaderInterceptor
from sagas.actions.registry import ACTION_ATTRIBUTE, Actions
from sagas.project import Project
from sagas.settings import SqlConnection, load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.processes import WorkerProcess

EFFECTS = "create table if not exists effects (what varchar(100), n integer)"


class EventsEnvironment:
    """``shop`` and ``bank`` are databases with the engine's tables and one of effects; ``shop`` is Kafka's outbox."""

    def __init__(self, folder: Path, temporal: str, urls: dict[str, str], kafka: str, prefix: str) -> None:
        self.folder, self.temporal, self.urls, self.kafka, self.prefix = folder, temporal, urls, kafka, prefix
        self.databases = DatabaseConnections(
            [SqlConnection(name=name, url_setting=url) for name, url in urls.items()], pool_size=4
        )

    @property
    def shop(self) -> AsyncEngine:
        return self.databases.engine("shop")

    def write(self, *definitions: str, actions: str = "", shop: str | None = None) -> None:
        """The project's files; ``shop`` is the URL a worker is given for the database of that name."""
        (self.folder / "definitions").mkdir(parents=True, exist_ok=True)
        for definition in definitions:
            plain = textwrap.dedent(definition)
            name = plain.split("saga:", 1)[1].split()[0]
            (self.folder / "definitions" / f"{name}.saga.yaml").write_text(plain, encoding="utf-8")
        (self.folder / f"actions_{self.prefix}.py").write_text(textwrap.dedent(actions), encoding="utf-8")
        (self.folder / "saga.toml").write_text(
            textwrap.dedent(
                f"""
                actions = ["./actions_{self.prefix}.py"]
                [temporal]
                address = "{self.temporal}"
                task_queue = "events-{self.prefix}"
                [connections.shop]
                url = "{shop or self.urls["shop"]}"
                [connections.bank]
                url = "{self.urls["bank"]}"
                [kafka]
                bootstrap_servers = "{self.kafka}"
                prefix = "{self.prefix}"
                outbox = "shop"
                max_message_bytes = 800000
                """
            ),
            encoding="utf-8",
        )

    @contextlib.asynccontextmanager
    async def serving(
        self, *definitions: str, actions: list[Callable[..., Any]] | None = None, shop: str | None = None
    ) -> AsyncIterator[Client]:
        """A worker in this process; gives a client."""
        self.write(*definitions, shop=shop)
        project = Project(
            load_settings(self.folder), Actions([getattr(action, ACTION_ATTRIBUTE) for action in actions or []])
        )
        async with running_worker(project) as client:
            yield client

    def worker(self) -> WorkerProcess:
        """A worker as a process of its own, for the files that are written; not started."""
        return WorkerProcess("worker", self.folder)

    async def client(self) -> Client:
        """A client without a worker."""
        temporal = await Temporal.connect(self.temporal, interceptors=[HeaderInterceptor()])
        return Client(temporal, Project(load_settings(self.folder)))

    def check_back(self, temporal: str | None = None, *, first: float = 0.0) -> CheckBack:
        """The relay's check-back; events are due ``first`` seconds after they were written."""
        return CheckBack(lambda: Temporal.connect(temporal or self.temporal), intervals=Backoff(first, 3600.0))

    async def rows(self, saga_id: str, connection: str = "shop") -> list[Any]:
        """The events of a saga, in the order they were written."""
        return await self.query("select * from saga_outbox where saga_id = :id order by id", connection, id=saga_id)

    async def statuses(self, saga_id: str, connection: str = "shop") -> list[str]:
        return [row.status for row in await self.rows(saga_id, connection)]

    async def effects(self, connection: str = "shop") -> list[str]:
        return [row.what for row in await self.query("select what from effects order by what", connection)]

    async def query(self, statement: str, connection: str = "shop", **values: Any) -> list[Any]:
        async with self.databases.engine(connection).connect() as database:
            result = await database.execute(text(statement), values)
            return list(result) if result.returns_rows else []


async def open_environment(
    folder: Path, temporal: str, server: DatabaseServer, kafka: str = "127.0.0.1:1"
) -> EventsEnvironment:
    """An environment with its own two empty databases."""
    prefix = f"e{uuid.uuid4().hex[:10]}"
    urls = {}
    admin = DatabaseConnections([SqlConnection(name="admin", url_setting=server.url())], pool_size=1)
    async with admin.engine("admin").connect() as connection:
        for name in ("shop", "bank"):
            await connection.exec_driver_sql(f"create database {prefix}_{name}")
            urls[name] = server.url(f"{prefix}_{name}")
    await admin.close()
    env = EventsEnvironment(folder, temporal, urls, kafka, prefix)
    for name in urls:
        await create_tables(env.databases.engine(name))
        await env.query(EFFECTS, name)
    return env


async def begin(client: Client, saga: str, **input: Any) -> str:
    """Start a saga; gives its id."""
    return (await client.start(saga, input, id=f"{saga}-{uuid.uuid4().hex[:12]}")).id


async def run_saga(client: Client, saga: str, **input: Any) -> dict[str, Any]:
    """Start a saga and wait until it is over or parked; gives its story."""
    return await finished(client, await begin(client, saga, **input))
