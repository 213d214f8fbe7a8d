"""Another saga that a plain client starts under the id of a saga of a bulk workflow, and that ends before it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from saga_workers.bulk.detached_starts import SagaDetacher
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.views.saga_list import SagaFilter
from tests.helpers.waiting import until
from tests.integration.bulk.conftest import Bank

honest = SagaDetacher.__call__

STRANGERS = [("looking", {}, "COMPLETED"), ("looking", {"finds": False}, "COMPENSATED"), ("looking", {}, "TERMINATED")]


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize(("saga", "input", "end"), STRANGERS, ids=[end for _, _, end in STRANGERS])
async def test_the_saga_goes_on_after_it(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, saga: str, input: Any, end: str
) -> None:
    id, seen = f"member-{end.lower()}", []
    queue = bank.project.settings.temporal.task_queue

    async def start_stranger() -> None:
        own = queue if end != "TERMINATED" else "nobody"
        stranger = await bank.client.temporal.start_workflow(saga, input, id=id, task_queue=own)
        if end == "TERMINATED":
            await stranger.terminate("a test")
            return
        with suppress(WorkflowFailureError):
            await stranger.result()
        query = "select state from saga_run where saga_id = %s and saga = %s"
        await until(lambda: asyncio.to_thread(lambda: bank.query(query, id, saga) == [(end,)]))

    async def after_its_end(
        self: SagaDetacher, request: Mapping[str, Any], states: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
    ) -> dict[str, str]:
        if not seen:
            await start_stranger()
            seen.append((await bank.client.locator.locate(id)).kind)
            own = SagaFilter(task_queue=queue)
            seen.append([view.id async for view in list_stuck(bank.client.locator, own, limit=100)])
            seen.append((await bank.client.view(id)).saga)
        return await honest(self, request, states)

    monkeypatch.setattr(SagaDetacher, "__call__", after_its_end)
    result = await bank.start("waiting", [{"id": id, "waits": True}])
    assert seen == ["in bulk", [], "waiting"]
    assert result["detached"] == [id]
    await bank.client.signal(id, "go")
    await bank.client.temporal.get_workflow_handle(id).result()
    assert (await bank.client.view(id)).state == "COMPLETED"
    assert bank.query("select id from note") == [(id,)]

    async def is_released() -> bool:
        return bank.query("select 1 from saga_claim where saga_id = %s", id) == []

    await until(is_released)
