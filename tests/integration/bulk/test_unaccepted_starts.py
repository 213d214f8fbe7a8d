"""A start of a bulk workflow that no worker accepts leaves nothing that asyncio prints later."""

from __future__ import annotations

import asyncio
import gc
import uuid

import pytest
from temporalio.client import WithStartWorkflowOperation
from temporalio.common import WorkflowIDConflictPolicy

from saga_workers.bulk import acceptance
from saga_workers.client import Client
from sagas.project import Project


async def test_a_start_that_nobody_accepts_leaves_no_unread_error(
    bank_project: tuple[Project, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "CLAIM_TIMEOUT", 0.5)
    printed: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: printed.append(context["message"]))
    client = await Client.connect(bank_project[0])
    id = f"unaccepted-{uuid.uuid4()}"
    start = WithStartWorkflowOperation(
        "nobody", id=id, task_queue=id, id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING
    )
    assert await acceptance.start_accepted(client.temporal, start, id, [id]) is None
    await client.close()
    del start
    await asyncio.sleep(0.1)
    gc.collect()
    assert printed == []
