"""Runs of any client whose ids no row can have: the ledger is not asked about them, and they hide no other saga."""

from __future__ import annotations

import uuid

import pytest

from saga_workers.views.saga_list import SagaFilter, query_sagas
from tests.helpers import eager_start
from tests.helpers.run_changes import delete_run
from tests.helpers.waiting import until
from tests.integration.ledger.conftest import Stay


@pytest.mark.parametrize("begin", ["nul\0", "l" * 500])
async def test_a_closed_run_with_such_an_id_is_listed(stay: Stay, begin: str) -> None:
    id, client = f"{begin}{uuid.uuid4()}", stay.client
    queue, input = client.project.settings.temporal.task_queue, eager_start.json_payload({"city": "rome"})
    started = await eager_start.start(client.temporal, "stay", id, queue, input, {}, eager=True)
    await eager_start.complete_first_task(client.temporal, started, [eager_start.complete()])

    async def is_listed() -> bool:
        listed = query_sagas(client.locator, SagaFilter(task_queue=queue), limit=9)
        return id in [view.id async for view in listed]

    await until(is_listed)
    ledger = client.locator.ledger
    assert (await ledger.find(id), await ledger.bulk_claim(id), await ledger.machine(id)) == (None, None, None)
    assert (await ledger.find_all([id]), await ledger.states([id]), await ledger.claims([id])) == ({}, {}, {})
    assert (await ledger.known_sagas([id]), await ledger.accesses(id)) == ({}, [])
    await delete_run(client.temporal, id)
