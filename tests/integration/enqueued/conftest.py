"""A shop whose application enqueues sagas in its own transactions; no Kafka."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.concurrency import end_tasks
from saga_activities.connections import open_engine
from saga_workers.client import Client
from saga_workers.relay.relay_process import run_relay
from saga_workers.runtime.databases import set_up_database
from saga_workers.temporal.temporal_client import connect
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.new_databases import new_url
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until

CHECKOUT = """
saga: checkout
input:
  type: object
  required: [product]
  properties: {product: {type: string}, quantity: {type: integer, default: 1}}
steps:
  - {id: paid, uses: wait, with: {signal: paid}}
"""

ORDER = """
saga: order
id: "order-${{ input.number }}"
input: {type: object, required: [number], properties: {number: {type: string}}}
steps:
  - {id: pause, uses: wait, with: {for: 1h}}
"""


NOTED = """
saga: noted
input: {type: object, required: [number], properties: {number: {type: integer}}}
steps:
  - {id: step, uses: pass}
"""


@dataclass
class Shop:
    """The project in ``folder``, and the database of its application. ``mark`` begins the ids of its sagas: all tests
    share one Temporal server.
    """

    folder: Path
    engine: AsyncEngine
    project: Project
    client: Client
    mark: str

    async def move_to(self, temporal: TemporalServer) -> None:
        """Use another server from now on, in each process that starts later."""
        await self.client.close()
        file = self.folder / "saga.toml"
        file.write_text(file.read_text().replace(str(self.project.settings.temporal.address), temporal.address))
        self.project = Project(load_settings(config=str(file)))
        self.client = Client(await connect(self.project.settings), self.project)

    async def sql(self, statement: str, **values: Any) -> list[Any]:
        async with self.engine.connect() as connection:
            result = await connection.execute(text(statement), values)
            return list(result.all()) if result.returns_rows else []

    async def rows(self) -> list[tuple[str, str | None, str | None]]:
        """The status of each row, the id of its saga, and its reason."""
        rows = await self.sql("select status, saga_id, reason from saga_enqueued order by id")
        return [(row[0], row[1], row[2]) for row in rows]

    async def is_empty(self) -> bool:
        return not await self.rows()

    async def is_completed(self, saga_id: str) -> bool:
        return (await self.client.show(saga_id))["state"] == "COMPLETED"

    async def inputs(self, count: int) -> dict[str, Any]:
        """The inputs of the sagas of the project, by their ids, as soon as Temporal lists so many."""
        ids = await until(lambda: self._listed(count))
        return {id: await self._input(id) for id in ids}

    async def _listed(self, count: int) -> list[str]:
        queue = self.project.settings.temporal.task_queue
        runs = [run.id async for run in self.client.temporal.list_workflows(f"TaskQueue = '{queue}'")]
        return runs if len(runs) >= count else []

    async def _input(self, saga_id: str) -> Any:
        handle = self.client.temporal.get_workflow_handle(saga_id)
        first = await anext(aiter(handle.fetch_history_events(page_size=1)))
        payloads = first.workflow_execution_started_event_attributes.input.payloads
        return (await self.client.temporal.data_converter.decode(payloads))[0]

    async def history(self, saga_id: str) -> list[str]:
        """The names of the signals of a saga, in their order."""
        handle = self.client.temporal.get_workflow_handle(saga_id)
        events = [event async for event in handle.fetch_history_events()]
        return [
            event.workflow_execution_signaled_event_attributes.signal_name
            for event in events
            if event.HasField("workflow_execution_signaled_event_attributes")
        ]

    @asynccontextmanager
    async def relay(self) -> AsyncIterator[asyncio.Task[None]]:
        """A relay in this process."""
        stop = asyncio.Event()
        running = asyncio.create_task(run_relay(self.project.settings, stop=stop, grace=timedelta(seconds=10)))
        try:
            yield running
            stop.set()
            await running
        finally:
            await end_tasks([running])

    async def deliver(self) -> None:
        """Deliver until no row is to be delivered any more."""
        async with self.relay():
            await until(self._is_delivered)

    async def _is_delivered(self) -> bool:
        return await self.sql("select id from saga_enqueued where status = 'NEW'") == []


def write_settings(folder: Path, address: str, url: str, more: str = "") -> None:
    (folder / "saga.toml").write_text(
        f'definitions = ["."]\n[temporal]\naddress = "{address}"\ntask_queue = "shop-{uuid.uuid4().hex[:8]}"\n'
        f'[connections.shop]\nurl = "{url}"\n[ledger]\nconnection = "shop"\n[enqueue]\nconnections = ["shop"]\n{more}'
    )


@pytest.fixture
def kind() -> str:
    """The database of the shop."""
    return "postgresql"


@pytest.fixture
def enqueue_settings() -> str:
    """Further lines of ``[enqueue]``."""
    return ""


@pytest.fixture
async def shop(
    kind: str, enqueue_settings: str, temporal: TemporalServer, request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Shop]:
    url = await new_url(kind, request, tmp_path)
    write_settings(tmp_path, temporal.address, url, enqueue_settings)
    for name, definition in (("checkout", CHECKOUT), ("order", ORDER), ("noted", NOTED)):
        (tmp_path / f"{name}.saga.yaml").write_text(definition)
    project = Project(load_settings(config=str(tmp_path / "saga.toml")))
    await set_up_database(project.settings.sql_connection("shop"))
    engine = open_engine("shop", url, 4)
    shop = Shop(tmp_path, engine, project, Client(await connect(project.settings), project), uuid.uuid4().hex[:8])
    yield shop
    await shop.client.close()
    await engine.dispose()


@pytest.fixture
async def own_temporal(tmp_path: Path) -> AsyncIterator[TemporalServer]:
    """A server that a test may kill."""
    (tmp_path / "temporal").mkdir()
    with TemporalServer(tmp_path / "temporal") as server:
        yield server
