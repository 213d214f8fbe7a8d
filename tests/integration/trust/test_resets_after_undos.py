"""A saga that was undone, and whose run is then reset: what was undone is not done again."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from saga_workers.client import Client
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.run_changes import reset_run
from tests.helpers.waiting import until
from tests.integration.trust.conftest import Shop
from tests.integration.trust.test_replayed_starts import reset_after_debit, waits

REASON = {"kind": "terminated", "message": "the run was reset after the saga had been undone"}
IDS = ("plain", "a\\b", "a\\d", 'a"q', '"', "a\\", "it's", "100%_!")


@pytest.fixture
async def client(shop: Shop) -> AsyncIterator[Client]:
    async with running_worker(shop.project) as client:
        yield client


async def completed(client: Client, id: str, *, again: bool = False) -> str:
    await client.start("moving", {}, id=id, again=again)
    await until(lambda: waits(client, id))
    await approve(client, id)
    assert (await finished(client, id))["state"] == "COMPLETED"
    return id


async def approve(client: Client, id: str) -> None:
    with contextlib.suppress(RPCError):  # it may have ended
        await client.temporal.get_workflow_handle(id).signal("approved", {})


async def closed(client: Client, id: str, run_id: str) -> WorkflowExecutionStatus | None:
    """The status with which the run has closed."""

    async def status() -> Any:
        description = await client.temporal.get_workflow_handle(id, run_id=run_id).describe()
        return description.status

    async def is_closed() -> bool:
        return await status() is not WorkflowExecutionStatus.RUNNING

    await until(is_closed)
    return await status()


async def reason(client: Client, id: str) -> dict[str, Any]:
    shown = (await client.show(id))["reason"]
    return {name: shown[name] for name in REASON}


async def story(client: Client, id: str) -> dict[str, tuple[str, str | None]]:
    """The state of each step, and of its undo."""
    steps = (await client.show(id))["steps"]
    return {step["id"]: (step["state"], (step.get("compensation") or {}).get("state")) for step in steps}


async def test_a_saga_that_saga_undo_has_undone_goes_backward(shop: Shop, client: Client) -> None:
    id = await completed(client, f"undone-{uuid.uuid4()}")
    await client.undo(id, reason="a test", who="anna")
    assert (await finished(client, id))["state"] == "COMPENSATED"
    assert shop.said == ["debit", "credit", "withdraw", "refund"]
    run_id = await reset_after_debit(client, id)
    await approve(client, id)
    assert await closed(client, id, run_id) is WorkflowExecutionStatus.FAILED
    assert (await client.show(id))["state"] == "COMPENSATED"
    assert await reason(client, id) == REASON
    assert shop.said.count("credit") == 1
    assert shop.said[4:] == ["refund"], "with the key of the first undo"
    undone = ("COMPENSATED", "DONE")
    assert await story(client, id) == {"debit": undone, "approval": ("DONE", None), "credit": undone}


async def test_the_steps_of_a_saga_that_has_undone_itself_are_shown(shop: Shop, client: Client) -> None:
    id = (await client.start("moving", {}, id=f"cancelled-{uuid.uuid4()}")).id
    await until(lambda: waits(client, id))
    await client.cancel(id, reason="a test")
    assert (await finished(client, id))["state"] == "COMPENSATED"
    before = await story(client, id)
    assert before["debit"] == ("COMPENSATED", "DONE")
    for _ in range(2):
        run_id = await reset_run(client.temporal, id)
        assert await closed(client, id, run_id) is WorkflowExecutionStatus.FAILED
        assert await story(client, id) == before


async def test_a_saga_whose_undo_runs_goes_backward(shop: Shop, client: Client) -> None:
    id = await completed(client, f"undoing-{uuid.uuid4()}")
    shop.may_answer.clear()
    await client.undo(id, reason="a test", who="anna")
    await until(lambda: "withdraw" in shop.said)
    run_id = await reset_after_debit(client, id)
    await approve(client, id)
    await until(lambda: shop.said.count("withdraw") == 2)  # by the same key: the other run may be terminated
    shop.may_answer.set()
    assert await closed(client, id, run_id) is WorkflowExecutionStatus.FAILED
    assert (await client.temporal.get_workflow_handle(f"{id}~undo").describe()).status is not None
    assert await reason(client, id) == REASON
    assert shop.said.count("credit") == 1


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize("reset", ["outer", "nested"])
async def test_a_nested_saga_that_was_undone_goes_backward(shop: Shop, client: Client, reset: str) -> None:
    id = (await client.start("outer", {})).id
    nested = f"{id}/move"
    await until(lambda: "debit" in shop.said)
    await until(lambda: waits(client, nested))
    await approve(client, nested)
    assert (await finished(client, id))["state"] == "COMPLETED"
    await client.undo(id, reason="a test", who="anna")
    assert (await finished(client, id))["state"] == "COMPENSATED"
    again = id if reset == "outer" else nested
    run_id = await reset_after_debit(client, again)
    await approve(client, nested)
    assert await closed(client, again, run_id) is WorkflowExecutionStatus.FAILED
    assert await reason(client, again) == REASON
    assert [shop.said.count(what) for what in ("open", "debit", "credit", "after")] == [1, 1, 1, 1]


async def test_a_refused_undo_is_none(shop: Shop, client: Client) -> None:
    id = await completed(client, f"refused-{uuid.uuid4()}")
    queue = client.project.settings.temporal.task_queue
    undo = await client.temporal.start_workflow("moving", {"no": "undo"}, id=f"{id}~undo", task_queue=queue)
    assert await closed(client, undo.id, undo.first_execution_run_id or "") is WorkflowExecutionStatus.FAILED
    await reset_after_debit(client, id)
    await approve(client, id)
    assert (await finished(client, id))["state"] == "COMPLETED"
    assert shop.said == ["debit", "credit", "credit"]


@pytest.mark.sampled(keep=2)
@pytest.mark.parametrize("name", IDS)
async def test_the_characters_of_the_id_do_not_matter(shop: Shop, client: Client, name: str) -> None:
    id = f"{name}{uuid.uuid4()}{name}"
    await client.start("moving", {}, id=id)
    await until(lambda: waits(client, id))
    await client.cancel(id, reason="a test", who="anna")
    assert (await finished(client, id))["state"] == "COMPENSATED"
    run_id = await reset_after_debit(client, id)
    await approve(client, id)
    assert await closed(client, id, run_id) is WorkflowExecutionStatus.FAILED
    assert await reason(client, id) == {"kind": "cancelled", "message": "a test"}  # that of the run before
    assert "credit" not in shop.said
