"""A saga that leaves its bulk workflow while another run has its id: it is not taken for the one that goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from saga_workers.bulk.detached_starts import SagaDetacher
from saga_workers.stuck.stuck_sagas import list_stuck
from saga_workers.views.saga_list import SagaFilter
from sagas.protocol.payloads import BULK_MEMO
from tests.helpers.waiting import until
from tests.integration.bulk.conftest import Bank

honest = SagaDetacher.__call__


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("by", ["queue", "prefix"])
async def test_a_saga_waits_until_its_id_is_free(bank: Bank, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """The run that has its id is listed, too, if no task queue is asked for."""
    id = f"taken-{by}"
    temporal, foreign = bank.client.temporal, []

    async def after_a_foreign_start(
        self: SagaDetacher, request: Mapping[str, Any], states: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
    ) -> dict[str, str]:
        if not foreign:
            memo = {BULK_MEMO: request["bulk_id"]}
            foreign.append(await temporal.start_workflow("billing", {}, id=id, task_queue="nobody", memo=memo))
        return await honest(self, request, states)

    monkeypatch.setattr(SagaDetacher, "__call__", after_a_foreign_start)
    starting = asyncio.create_task(bank.start("waiting", [{"id": id, "waits": True}]))

    queue = bank.project.settings.temporal.task_queue
    own = SagaFilter(task_queue=queue) if by == "queue" else SagaFilter(id_prefix=id)

    async def is_named() -> bool:
        listed = [view async for view in list_stuck(bank.client.locator, own, limit=100)]
        reasons = [reason for view in listed for reason in view.stuck or ()]
        return any("a run of billing on the task queue nobody has its id: end that run" in text for text in reasons)

    await until(is_named)
    assert bank.query(f"select count(*) from saga_claim where saga_id = '{id}'") == [(1,)]
    await foreign[0].terminate("a test")
    result = await starting
    assert result["detached"] == [id]
    await bank.client.signal(id, "go")
    await temporal.get_workflow_handle(id).result()
    assert (await bank.client.view(id)).state == "COMPLETED"
    assert bank.query("select count(*) from note") == [(1,)]
