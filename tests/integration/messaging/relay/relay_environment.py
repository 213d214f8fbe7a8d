"""An outbox in a database of its own, rows as participants write them, and relays as processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from saga_activities.messaging.outbox import event_row
from saga_workers.relay.relay_process import run_relay
from sagas.actions.events import Event
from sagas.settings import KafkaSettings, Settings, SqlConnection
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import RelayProcess
from tests.helpers.waiting import LIMIT

INSERT = """
insert into saga_outbox (event_id, topic, event_key, value, headers, saga_id, step, generation, status, created_at,
                         event_type, shard)
values (%(event_id)s, %(topic)s, %(event_key)s, %(value)s, %(headers)s, %(saga_id)s, %(step)s, 1, %(status)s, %(at)s,
        %(event_type)s, %(hash)s %% (select shards from saga_outbox_home))
"""

DATABASE = "shop"


class OutboxEnvironment:
    """One database with an outbox, and the settings of a relay for it. Synchronous: tests look from the outside."""

    def __init__(self, server: DatabaseServer, kafka: Broker, folder: Path, **kafka_settings: Any) -> None:
        self.server, self.broker, self.folder = server, kafka, folder
        self.url = new_database(server)
        self.database = self.url.rpartition("/")[2]
        self.kafka: KafkaSettings = kafka.settings(outbox=DATABASE, **kafka_settings)
        self.settings = Settings(
            root=folder,
            connections={DATABASE: SqlConnection(name=DATABASE, root=folder, url_setting=self.url)},
            kafka=self.kafka,
        )
        self._more: dict[str, Any] = kafka_settings
        self.relays: list[RelayProcess] = []

    async def make_tables(self) -> None:
        engine = open_engine(DATABASE, self.url, 1)
        await create_tables(engine)
        await engine.dispose()

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url.replace("postgresql://", "postgres://"), autocommit=True)

    def insert(self, connection: psycopg.Connection[Any], *events: Event, saga_id: str = "s") -> list[str]:
        """Rows in the connection's transaction; their ids."""
        rows = [{**event_row(event), "saga_id": saga_id, "step": "pay", "at": time.time()} for event in events]
        with connection.cursor() as cursor:
            cursor.executemany(INSERT, rows)
        return [row["event_id"] for row in rows]

    def emit(self, *events: Event) -> list[str]:
        """Rows in a transaction of their own."""
        with self.connect() as connection, connection.transaction():
            return self.insert(connection, *events)

    def statuses(self) -> Counter[str]:
        with self.connect() as connection:
            return Counter(
                dict(connection.execute("select status, count(*) from saga_outbox group by status").fetchall())
            )

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(query).fetchall()  # pyright: ignore[reportArgumentType, reportCallIssue]

    async def all_published(self, timeout: float = LIMIT) -> None:
        """Wait until nothing is NEW. A relay on a busy machine may be slow, but it must not stall for ``timeout``."""
        end, least = time.monotonic() + timeout, math.inf
        while (statuses := await asyncio.to_thread(self.statuses))["NEW"]:
            if statuses["NEW"] < least:
                end, least = time.monotonic() + timeout, statuses["NEW"]
            assert time.monotonic() < end, f"nothing was published for {timeout} s: {statuses}"
            await asyncio.sleep(0.05)

    @contextlib.asynccontextmanager
    async def relaying(self, **options: Any) -> AsyncIterator[None]:
        """A relay in this process as long as the block runs."""
        stop = asyncio.Event()
        running = asyncio.create_task(run_relay(self.settings, stop=stop, **options))
        try:
            yield
        finally:
            stop.set()
            await running

    def relay(self, name: str = "relay", **options: Any) -> RelayProcess:
        """A relay as a process of its own; not started."""
        self.write_project()
        made = RelayProcess(f"{name}-{len(self.relays)}", self.folder, **options)
        self.relays.append(made)
        return made

    def close(self) -> None:
        for relay in self.relays:
            relay.kill()

    def write_project(self) -> None:
        """The project folder that the command reads."""
        lines = [
            f'[connections.{DATABASE}]\nurl = "{self.url}"\n',
            "[kafka]",
            f'bootstrap_servers = "{self.kafka.servers}"',
            f'prefix = "{self.kafka.prefix}"',
        ]
        for name, value in self._more.items():
            if name in ("transaction_timeout", "retention"):
                lines.append(f'{name} = "{value:g}s"')
            elif name == "client":
                lines += [
                    "[kafka.client]",
                    *(f"{json.dumps(key)} = {json.dumps(setting)}" for key, setting in value.items()),
                ]
            elif name not in ("bootstrap_servers", "prefix"):
                lines.append(f"{name} = {json.dumps(value)}")
        (self.folder / "saga.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────

    def check(self, *topics: str) -> None:
        """Each published row is in its topic once, nothing else is, keys are in order, nothing is undecided."""
        records = self.broker.read_committed(*topics)
        seen = [record.headers["ce_id"] for record in records]
        doubled = [event for event, times in Counter(seen).items() if times > 1]
        assert not doubled, f"{len(doubled)} of {len(seen)} events are doubled: {doubled[:3]}"
        published = {row[0] for row in self.rows("select event_id from saga_outbox where status = 'PUBLISHED'")}
        lost = published - set(seen)
        assert not lost, f"{len(lost)} events are recorded and not in the topic: {sorted(lost)[:3]}"
        assert set(seen) <= published, "events are in the topic that are not recorded"
        orders: dict[tuple[str, str | None], list[int]] = {}
        for record in records:
            if record.key is not None and isinstance(record.json(), int):
                orders.setdefault((record.topic, record.key), []).append(record.json())
        for place, numbers in orders.items():
            assert numbers == sorted(numbers), f"{place} is out of order: {numbers}"
        self.check_decided(*topics)

    def check_decided(self, *topics: str) -> None:
        """The last stable offset is the high watermark on every partition, and of the progress topic too."""
        [(home,)] = self.rows("select home from saga_outbox_home")
        for topic in (*topics, f"{self.kafka.prefix}-relay-{home}"):
            for partition, (stable, high) in self.broker.offsets(topic).items():
                assert stable == high, f"{topic}/{partition}: a transaction is open, {stable} < {high}"


def events(topic: str, count: int, keys: int = 5, start: int = 0) -> list[Event]:
    """Numbered events, in order within each key."""
    return [Event(topic, f"k{n % keys}", n) for n in range(start, start + count)]
