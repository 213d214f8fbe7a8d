"""Runs of a stranger that answer with no value, or with several: they are told, and hide no other run."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.views.saga_list import SagaFilter
from tests.helpers import eager_start
from tests.helpers.local_worker import running_worker
from tests.helpers.waiting import until
from tests.integration.trust.conftest import Shop


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("values", [[], ["accepted", "accepted"]])
async def test_a_cancel_that_is_not_answered_with_one_value(shop: Shop, values: list[Any]) -> None:
    queue, id = shop.project.settings.temporal.task_queue, f"own-{uuid.uuid4()}"
    async with running_worker(shop.project) as client:
        run = eager_start.KeptRun(client.temporal, id, queue)
        input = eager_start.json_payload({"text": "x"})
        started = await eager_start.start(client.temporal, "own", id, queue, input, {}, eager=True)
        await run.complete_first_task(started)
        await run.complete_update("cancel", [eager_start.json_payload(value) for value in values])
        shown = await client.show(id)
        assert shown["incomplete"] is not None
        assert not shown["cancel_requested"]

        async def is_listed() -> bool:
            return id in [view.id async for view in list_stuck(client.locator, SagaFilter(task_queue=queue), limit=9)]

        await until(is_listed)
        await client.temporal.get_workflow_handle(id).terminate("the end of the test")
