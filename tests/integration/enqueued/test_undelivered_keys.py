"""A signal row that the worker of its saga could not decrypt stays until the worker has the key."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from sagas import enqueue_signal
from sagas.project import Project
from sagas.settings.codec import CodecSettings
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.waiting import until
from tests.integration.enqueued.conftest import Shop

EARLIER, LATER = "a" * 64, "b" * 64


@pytest.fixture
def enqueue_settings() -> str:
    return f'[codec]\nkey = "{LATER} {EARLIER}"\n'


async def test_a_signal_waits_for_the_key_of_the_worker(shop: Shop) -> None:
    settings = shop.project.settings
    before = Project(settings.model_copy(update={"codec": CodecSettings(key=EARLIER)}))
    saga_id = f"{shop.mark}-waits"
    async with shop.relay():
        async with running_worker(before) as client:
            await client.start("checkout", {"product": "fig"}, id=saga_id)
            async with AsyncSession(shop.engine) as session:
                await enqueue_signal(session, saga_id, "paid", {"method": "card"})
                await session.commit()

            async def held() -> bool:
                rows = await shop.rows()
                return [status for status, *_ in rows] == ["NEW"] and "does not have the key" in str(rows[0][2])

            await until(held)
            assert await shop.history(saga_id) == []
        async with running_worker(Project(settings)) as client:
            assert (await finished(client, saga_id))["state"] == "COMPLETED"
        await until(shop.is_empty)
