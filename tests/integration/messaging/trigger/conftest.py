"""The database of a consumer, one of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from saga_activities.guard.schema import create_tables
from tests.helpers.new_databases import new_url
from tests.integration.messaging.trigger.consumer_setup import ConsumerSetup


@pytest.fixture(params=["postgresql", "mariadb", "sqlite"])
async def setup(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ConsumerSetup]:
    url = await new_url(request.param, request, tmp_path)
    setup = ConsumerSetup(url)
    await create_tables(setup.engine)
    async with setup.engine.begin() as connection:
        made = "create table if not exists effect (consumer varchar(100), what varchar(100), number int)"
        await connection.execute(text(made))
    yield setup
    await setup.databases.close()
    await setup.others.close()
