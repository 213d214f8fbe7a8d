"""The shop of definitions/shop-api: HTTP requests whose transactions start and signal sagas."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import psycopg
import pytest

from saga_workers.relay.relay_process import run_relay
from saga_workers.runtime.databases import set_up_database
from sagas.project import Project
from sagas.settings import load_settings
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.new_databases import new_database
from tests.helpers.processes import TemporalServer

EXAMPLE = Path(__file__).parents[3] / "definitions/shop-api"


def load_app(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("shop_api_app", folder / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
async def shop(
    postgres_server: DatabaseServer, temporal: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Project, httpx.AsyncClient]]:
    """The project of the shop with a database of its own, and a client of its application."""
    url = new_database(postgres_server)
    folder = tmp_path / "shop"
    shutil.copytree(EXAMPLE, folder)
    monkeypatch.setenv("SAGA_CONNECTIONS__SHOP__URL", url)
    monkeypatch.setenv("SAGA_TEMPORAL__ADDRESS", temporal.address)
    monkeypatch.setenv("SAGA_TEMPORAL__TASK_QUEUE", f"shop-{uuid.uuid4().hex[:8]}")
    monkeypatch.setenv("DATABASE_URL", url.replace("postgresql:", "postgresql+psycopg:"))
    project = Project(load_settings(folder))
    await set_up_database(project.settings.sql_connection("shop"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(load_app(folder).app), base_url="http://shop") as client:
        yield project, client


def placed(order: str, **changed: Any) -> dict[str, Any]:
    return {"order": order, "product": "apple", "quantity": 2, **changed}


def rows(project: Project, statement: str) -> list[tuple[Any, ...]]:
    url = project.settings.sql_connection("shop").url.replace("postgresql+psycopg:", "postgresql:")
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return [] if cursor.description is None else cursor.fetchall()


async def test_an_order_and_its_saga_are_one_transaction(shop: tuple[Project, httpx.AsyncClient]) -> None:
    project, client = shop
    order = uuid.uuid4().hex[:8]
    async with running_worker(project) as sagas:
        assert (await client.post("/orders", json=placed(order))).status_code == 202
        assert (await client.post("/orders", json=placed(order))).status_code == 409
        assert (await client.post("/orders", json=placed("none", quantity=0))).status_code == 409
        assert (await client.post(f"/orders/{order}/payment")).status_code == 202
        await run_relay(project.settings, once=True)
        ended = await finished(sagas, f"order-{order}")

        assert ended["state"] == "COMPLETED"
        assert (await client.get(f"/orders/{order}")).json() == {"order": order, "state": "shipped"}


async def test_of_concurrent_orders_with_one_id_one_starts_a_saga(shop: tuple[Project, httpx.AsyncClient]) -> None:
    project, client = shop
    answers = await asyncio.gather(*(client.post("/orders", json=placed("twice")) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [202, 409, 409, 409, 409]
    assert rows(project, "select saga_id from saga_enqueued") == [("order-twice",)]


async def test_what_is_rolled_back_after_it_has_enqueued_starts_nothing(
    shop: tuple[Project, httpx.AsyncClient],
) -> None:
    """The commit fails, when both the order and the start are written."""
    project, client = shop
    rows(
        project,
        "alter table orders add constraint sold foreign key (product) references stock deferrable initially deferred",
    )
    assert (await client.post("/orders", json=placed("plums", product="plum"))).status_code == 409
    assert rows(project, "select id from orders") == []
    assert rows(project, "select saga_id from saga_enqueued") == []
    rows(project, "alter table saga_enqueued add check (saga_id <> 'order-bad')")
    assert (await client.post("/orders", json=placed("bad"))).status_code == 409
    assert rows(project, "select id from orders") == []


async def test_requests_that_are_not_valid(shop: tuple[Project, httpx.AsyncClient]) -> None:
    project, client = shop
    assert (await client.post("/orders", json={"order": "o-1"})).status_code == 422
    assert (await client.post("/orders/o-1/payment")).status_code == 404
    assert (await client.get("/orders/o-1")).json() == {"detail": "there is no such order"}
    assert rows(project, "select saga_id from saga_enqueued") == []
