"""Enqueued starts that are delivered together share workflows."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from sagas import enqueue
from tests.helpers.local_worker import running_worker
from tests.integration.enqueued.conftest import Shop


@pytest.fixture
def enqueue_settings() -> str:
    return 'bulk_wait = "250ms"\n'


async def test_starts_that_are_delivered_together_share_workflows(shop: Shop) -> None:
    async with running_worker(shop.project):
        async with AsyncSession(shop.engine) as session:
            for number in range(300):
                await enqueue(session, "noted", {"number": number}, id=f"{shop.mark}-{number}")
            await enqueue(session, "noted", {"number": "wrong"}, id=f"{shop.mark}-wrong")
            await enqueue(session, "noted", {"number": 0}, id=f"{shop.mark}-0")
            await enqueue(session, "noted", {"number": -1}, id=f"{shop.mark}-0")
            await session.commit()
        await shop.deliver()

    rows = await shop.rows()
    assert [(status, saga_id) for status, saga_id, _ in rows] == [
        ("REFUSED", f"{shop.mark}-wrong"),
        ("REFUSED", f"{shop.mark}-0"),
    ]
    ids = [f"{shop.mark}-{number}" for number in range(300)]
    states, claims = await shop.client.ledger.states(ids), await shop.client.ledger.claims(ids)
    assert len({*states, *claims}) == 300
    queue = shop.project.settings.temporal.task_queue
    runs = [run.id async for run in shop.client.temporal.list_workflows(f"TaskQueue = '{queue}'")]
    assert len(runs) < 150
