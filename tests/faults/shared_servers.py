"""The servers that cells share, and the environment of each cell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from saga_activities.guard.schema import ddl
from saga_activities.locks.tables import ddl as locks_ddl
from tests.faults.bulk_environment import BulkCellEnvironment
from tests.faults.cell_environment import DEFINITION_KEY, PROJECT, TEMPLATE, WORKFLOW_QUEUE, CellEnvironment, Server
from tests.faults.cells import Cell, Row
from tests.faults.messaging import FAST_TRANSACTION_CLEANUP, Messaging
from tests.helpers.database_servers import HOST, DatabaseServer, postgres
from tests.helpers.fault_proxy import FaultProxy, fault_proxy
from tests.helpers.kafka_broker import BrokerProcess
from tests.helpers.kafka_proxy import KafkaProxy
from tests.helpers.processes import TemporalServer, WorkerProcess


@dataclass(frozen=True)
class SharedServers:
    """Servers that all cells share."""

    temporal: TemporalServer
    database: DatabaseServer
    folder: Path
    kafka: SharedKafka = field(default_factory=lambda: SharedKafka())


class SharedKafka:
    """A broker behind a proxy, for all rows that do not kill it; started on first use."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._found: tuple[BrokerProcess, KafkaProxy] | None = None

    async def get(self, folder: Path) -> tuple[BrokerProcess, KafkaProxy]:
        async with self._lock:
            if self._found is None:
                proxy = KafkaProxy()
                await proxy.start()
                broker = await asyncio.to_thread(
                    BrokerProcess, folder, advertised=proxy.port, more=FAST_TRANSACTION_CLEANUP
                )
                proxy.target = broker.port
                self._found = broker, proxy
                await asyncio.to_thread(broker.start)
            return self._found

    async def end(self) -> None:
        if self._found is not None:
            broker, proxy = self._found
            broker.kill()
            await proxy.stop()


def prepare(server: DatabaseServer) -> None:
    """The database that every cell gets a copy of."""
    where = {"host": HOST, "port": server.port, "user": server.user, "autocommit": True}
    with psycopg.connect(**where, dbname="postgres") as admin:
        admin.execute(f'create database "{TEMPLATE}"'.encode())
    with psycopg.connect(**where, dbname=TEMPLATE) as bank:
        bank.execute(ddl("postgresql").encode())
        bank.execute(locks_ddl("postgresql").encode())
        bank.execute((PROJECT / "schema.sql").read_bytes())


def shared_workflow_worker(temporal: TemporalServer, folder: Path) -> WorkerProcess:
    """Runs the workflows of all split cells: their definitions travel with them, so it needs none."""
    folder.mkdir(parents=True)
    settings = f'definitions = ["."]\n[temporal]\naddress = "{temporal.address}"\ntask_queue = "{WORKFLOW_QUEUE}"\n'
    settings += f'[worker]\ndefinition_key = "{DEFINITION_KEY}"\n'
    (folder / "saga.toml").write_text(settings, encoding="utf-8")
    return WorkerProcess("flows", folder)


@asynccontextmanager
async def open_messaging(row: Row, servers: SharedServers) -> AsyncIterator[Messaging]:
    """Kafka and processes that the cells of a row share."""
    folder = servers.folder / f"{row.number}-{row.fault}"
    proxy = None
    if row.kafka == "own":
        broker = await asyncio.to_thread(BrokerProcess, folder / "kafka", more=FAST_TRANSACTION_CLEANUP)
        await asyncio.to_thread(broker.start)
    else:
        broker, proxy = await servers.kafka.get(servers.folder / "kafka")
    messaging = Messaging(folder, broker, proxy, len(row.expected), row.client, row.consumes, row.sends_commands)
    try:
        yield messaging
    finally:
        await messaging.end()
        if row.kafka == "own":
            broker.kill()


@asynccontextmanager
async def open_environment(
    cell: Cell, servers: SharedServers, messaging: Messaging | None = None
) -> AsyncIterator[CellEnvironment]:
    """Build the environment of one cell, and tear it down."""
    row = cell.row
    async with AsyncExitStack() as stack:
        temporal, database = servers.temporal, servers.database
        folder = servers.folder / cell.id
        if "database" in row.own:
            database = await asyncio.to_thread(stack.enter_context, postgres())
            await asyncio.to_thread(prepare, database)
        if "temporal" in row.own:
            temporal = TemporalServer(folder / "temporal")
            stack.push_async_callback(asyncio.to_thread, temporal.kill)
            await asyncio.to_thread(temporal.start)
        ports: Mapping[Server, int] = {"database": database.port, "temporal": int(temporal.address.rpartition(":")[2])}
        proxies: Mapping[Server, FaultProxy] = {
            server: await stack.enter_async_context(fault_proxy(ports[server])) for server in row.proxied
        }
        make = BulkCellEnvironment if row.bulk else CellEnvironment
        env = make(
            folder,
            temporal,
            database,
            cell.target,
            split=row.split,
            kills_workflow_worker=row.kills_workflow_worker,
            attempts=row.attempts,
            pool=row.pool,
            saga=row.saga,
            proxies=proxies,
            messaging=messaging,
        )
        stack.push_async_callback(env.end)
        await env.build(row.edit)
        yield env
