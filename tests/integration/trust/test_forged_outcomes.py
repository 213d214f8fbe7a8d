"""Runs that a stranger starts under the id of an ended saga, or of its undo, and closes with any outcome."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from temporalio import workflow
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from saga_workers.views.saga_list import SagaFilter, query_sagas
from saga_workers.views.unsigned_outcomes import UNVERIFIED
from sagas.protocol.payloads import OUTCOME_MEMO, UNDO_SUFFIX
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.waiting import until
from tests.integration.trust.conftest import Shop


@workflow.defn(name="own", sandboxed=False)
class Stranger:
    """Closes with the view that its client wants."""

    @workflow.run
    async def run(self, view: dict[str, Any] | None) -> None:
        if view is not None:
            workflow.upsert_memo({OUTCOME_MEMO: view})


@pytest.mark.parametrize("suffix", ["", UNDO_SUFFIX])
@pytest.mark.parametrize("has_view", [True, False])
async def test_a_forged_outcome_is_shown_as_unverified(shop: Shop, suffix: str, has_view: bool) -> None:
    id = f"own-{uuid.uuid4()}"
    async with running_worker(shop.project) as client:
        await client.start("own", {"text": "x"}, id=id)
        true = await finished(client, id)
        assert true.get("incomplete") is None
        state = "COMPENSATED" if suffix else "COMPLETED"
        forged = {**true, "state": state, "output": "forged"} if has_view else None
        queue = f"stranger-{uuid.uuid4()}"
        async with Worker(
            client.temporal, task_queue=queue, workflows=[Stranger], workflow_runner=UnsandboxedWorkflowRunner()
        ):
            handle = await client.temporal.start_workflow("own", args=[forged], id=id + suffix, task_queue=queue)
            await handle.result()
        assert (await client.show(id))["incomplete"] == UNVERIFIED

        async def is_listed() -> bool:
            listed = query_sagas(client.locator, SagaFilter(saga="own"), limit=50)
            return UNVERIFIED in [view.incomplete async for view in listed if view.id == id]

        await until(is_listed)
