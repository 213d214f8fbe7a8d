"""A small shop as files, for workers that run as a process of their own."""

from __future__ import annotations

import uuid
from pathlib import Path

from sqlalchemy.ext.asyncio import create_async_engine

from saga_activities.guard.schema import create_tables
from saga_workers.client import Client
from saga_workers.temporal.temporal_client import HeaderInterceptor
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.processes import TemporalServer

CHECKOUT = """
saga: checkout
warn_after: 1s
input:
  type: object
  required: [sku, limit]
steps:
  - id: reserve
    uses: inventory.reserve
    with: {sku: "${{ input.sku }}"}
    compensate: inventory.release
  - id: charge
    uses: payments.charge
    with: {limit: "${{ input.limit }}"}
    pivot: true
"""

ACTIONS = """
from __future__ import annotations

from sagas import Rejected, Step, action


@action("inventory.reserve", connection="shop")
async def reserve(step: Step, sku: str) -> dict:
    step.logger.info("looking for %s on the shelf", sku)
    return {"sku": sku}


@action("inventory.release", connection="shop")
async def release(step: Step, sku: str) -> None:
    if sku == "glued":
        raise Rejected("it does not come off the shelf")


@action("payments.charge", connection="shop")
async def charge(step: Step, limit: int) -> dict:
    if limit < 10:
        raise Rejected("card declined", limit=limit)
    if limit == 13 and step.attempt == 1:
        raise RuntimeError("the till is jammed")
    return {"paid": 10}
"""


async def make_shop(folder: Path, temporal: TemporalServer, url: str | None = None) -> Project:
    """A project folder with its database (default: SQLite); nothing in it is shared with another test."""
    url = url or f"sqlite+aiosqlite:///{folder / 'shop.db'}"
    write_files(folder, temporal.address, url)
    return await open_project(folder, url)


async def open_project(folder: Path, url: str) -> Project:
    """The project in a folder, with the tables of the engine in its database."""
    engine = create_async_engine(url)
    await create_tables(engine)
    await engine.dispose()
    return Project(load_settings(config=str(folder / "saga.toml")))


def write_files(folder: Path, address: str, url: str) -> None:
    """The files of the project."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "checkout.saga.yaml").write_text(CHECKOUT, encoding="utf-8")
    (folder / "shop_actions.py").write_text(ACTIONS, encoding="utf-8")
    (folder / "saga.toml").write_text(
        f"""
definitions = ["."]
actions = ["./shop_actions.py"]
[temporal]
address = "{address}"
task_queue = "shop-{uuid.uuid4()}"
[connections.shop]
url = "{url}"
""",
        encoding="utf-8",
    )


async def connect(project: Project, temporal: TemporalServer) -> Client:
    """A client of the server for that project."""
    from temporalio.client import Client as Temporal

    return Client(await Temporal.connect(temporal.address, interceptors=[HeaderInterceptor()]), project)
