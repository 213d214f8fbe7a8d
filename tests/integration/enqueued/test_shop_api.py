"""The shop of definitions/shop-api: HTTP requests whose transactions start and signal sagas."""

from __future__ import annotations

import importlib.util
import shutil
import uuid
from pathlib import Path
from types import ModuleType

import httpx
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


async def test_an_order_and_its_saga_are_one_transaction(
    postgres_server: DatabaseServer, temporal: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database(postgres_server)
    folder = tmp_path / "shop"
    shutil.copytree(EXAMPLE, folder)
    monkeypatch.setenv("SAGA_CONNECTIONS__SHOP__URL", url)
    monkeypatch.setenv("SAGA_TEMPORAL__ADDRESS", temporal.address)
    monkeypatch.setenv("SAGA_TEMPORAL__TASK_QUEUE", f"shop-{uuid.uuid4().hex[:8]}")
    monkeypatch.setenv("DATABASE_URL", url.replace("postgresql:", "postgresql+psycopg:"))
    project = Project(load_settings(folder))
    await set_up_database(project.settings.sql_connection("shop"))
    app = load_app(folder).app
    order = uuid.uuid4().hex[:8]
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
    async with client, running_worker(project) as sagas:
        placed = {"order": order, "product": "apple", "quantity": 2}
        assert (await client.post("/orders", json=placed)).status_code == 202
        assert (await client.post("/orders", json=placed)).status_code == 409
        assert (await client.post("/orders", json={**placed, "order": "none", "quantity": 0})).status_code == 409
        assert (await client.post(f"/orders/{order}/payment")).status_code == 202
        await run_relay(project.settings, once=True)
        ended = await finished(sagas, f"order-{order}")

        assert ended["state"] == "COMPLETED"
        assert (await client.get(f"/orders/{order}")).json() == {"order": order, "state": "shipped"}
