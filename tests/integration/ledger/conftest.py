"""A database with a ledger on each kind of server, and a project with one on PostgreSQL."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from saga_activities.ledger.schema import create_ledger
from saga_workers.ledger.run_ledger import RunLedger
from saga_workers.runtime.databases import set_up_database
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import running_worker
from tests.helpers.new_databases import new_database, new_url
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until
from tests.integration.cli.conftest import CommandLine

ACTIONS = """
from pathlib import Path

from sagas import Rejected, Step, action

BROKEN = Path(__file__).parent / "broken"


@action("room.book", connection="shop")
async def book(step: Step, city: str) -> dict:
    await step.sql.execute("insert into rooms (city) values (:city)", city=city)
    return {"city": city}


@action("room.cancel", connection="shop")
async def cancel(step: Step, city: str) -> None:
    await step.sql.execute("delete from rooms where city = :city", city=city)


@action("pay", connection="shop")
async def pay(amount: int) -> None:
    if amount > 100:
        raise Rejected("card declined \\u0000 ' or 1=1", limit=100)


@action("visit", connection="shop")
async def visit() -> None:
    if BROKEN.exists():
        raise Rejected("closed")
"""

STAY = """
saga: stay
id: "stay-${{ input.city }}"
input:
  type: object
  properties: {city: {type: string}, amount: {type: number, default: 1}}
labels: {city: "${{ input.city }}"}
steps:
  - {id: room, uses: room.book, with: {city: "${{ input.city }}"}, compensate: room.cancel}
  - {id: pay, uses: pay, with: {amount: "${{ int(input.amount) }}"}, effect: none}
output: {booked: "${{ input.city }}"}
"""

TRIP = """
saga: trip
input: {type: object, properties: {city: {type: string}}}
steps:
  - {id: hotel, uses: saga, with: {name: stay, input: {city: "${{ input.city }}"}}}
"""

OUTING = """
saga: outing
id: "outing-${{ input.city }}"
input: {type: object, properties: {city: {type: string}}}
steps:
  - {id: buy, uses: room.book, with: {city: "${{ input.city }}"}, pivot: true}
  - {id: go, uses: visit, effect: none}
"""


@pytest_asyncio.fixture(params=["postgresql", "mariadb", "sqlite"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """A new database without tables."""
    engine = open_engine("shop", await new_url(request.param, request, tmp_path), 3)
    yield engine
    await engine.dispose()


@pytest_asyncio.fixture
async def ledger(database: AsyncEngine) -> RunLedger:
    """The ledger in a new database."""
    await create_tables(database)
    await create_ledger(database)
    return RunLedger("shop", lambda: database)


@dataclass
class Stay(CommandLine):
    """The project's folder with its worker in this process; ``url``: of the database.

    ``later`` is the same project after Temporal has forgotten its runs: with a server that has never seen them.
    """

    url: str
    later: CommandLine

    def query(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(statement, values or None).fetchall()  # pyright: ignore[reportArgumentType,reportCallIssue]

    async def wait_for_row(self, saga_id: str, state: str) -> None:
        """Wait until the ledger has this saga in this state."""
        query = "select 1 from saga_run where saga_id = %s and state = %s"
        await until(lambda: asyncio.to_thread(self.query, query, saga_id, state))


def write_project(folder: Path, address: str, url: str, *, ledger_url: str | None = None) -> Project:
    """``ledger_url``: the same database as another connection, for the ledger; default: that of the participant."""
    folder.mkdir(exist_ok=True)
    for name, text in (("stay", STAY), ("trip", TRIP), ("outing", OUTING)):
        (folder / f"{name}.saga.yaml").write_text(text)
    (folder / "actions.py").write_text(ACTIONS)
    (folder / "schema.sql").write_text("create table if not exists rooms (city text);\n")
    (folder / "saga.toml").write_text(
        f'definitions = ["."]\nactions = ["./actions.py"]\n[temporal]\naddress = "{address}"\n'
        f'task_queue = "ledger-{uuid.uuid4().hex[:8]}"\n'
        f'[connections.shop]\nurl = "{url}"\nschema = "schema.sql"\n'
        + (
            '[ledger]\nconnection = "shop"\n'
            if ledger_url is None
            else f'[connections.books]\nurl = "{ledger_url}"\n[ledger]\nconnection = "books"\n'
        )
    )
    return Project(load_settings(config=str(folder / "saga.toml")))


async def new_project(folder: Path, temporal: TemporalServer, server: DatabaseServer) -> tuple[Project, str]:
    """A project with its tables in a new database, and the URL of that."""
    url = new_database(server)
    project = write_project(folder, temporal.address, url)
    await set_up_database(project.settings.sql_connection("shop"))
    return project, url


@pytest.fixture(scope="package")
def empty_temporal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    """A server with a new, empty store."""
    with TemporalServer(tmp_path_factory.mktemp("empty-temporal")) as server:
        yield server


@pytest.fixture
async def stay(
    temporal: TemporalServer,
    empty_temporal: TemporalServer,
    postgres_server: DatabaseServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> AsyncIterator[Stay]:
    """With a worker in this process on each server."""
    url = new_database(postgres_server)
    project = write_project(tmp_path / "project", temporal.address, url)
    later = write_project(tmp_path / "later", empty_temporal.address, url)
    await set_up_database(project.settings.sql_connection("shop"))
    async with running_worker(project) as client, running_worker(later) as later_client:
        after = CommandLine(tmp_path / "later", capsys, later_client)
        yield Stay(tmp_path / "project", capsys, client, url, after)
        await client.close()
        await later_client.close()
