"""The name of an operator is shown as it is only where a signature proves who has sent it."""

from __future__ import annotations

import uuid

from saga_workers.client import Client
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.waiting import until
from tests.integration.trust.conftest import Shop


async def test_names_without_a_signature_are_unverified(shop: Shop) -> None:
    id = f"stuck-{uuid.uuid4()}"
    decision = {"step": "broken", "decision": "retry", "reason": "x", "who": "ada"}
    async with running_worker(shop.project, max_cached_workflows=0) as client:  # every task is a replay
        await client.start("stuck", {}, id=id)
        assert (await finished(client, id))["state"] == "PARKED"
        handle = client.temporal.get_workflow_handle(id)
        await handle.execute_update("resolve", {**decision, "who": "the owner"})
        await until(lambda: is_parked(client, id, decisions=1))
        await client.resolve(id, decision)
        await until(lambda: is_parked(client, id, decisions=2))
        await handle.execute_update("cancel", {"reason": "y", "who": "the owner"})
        story = await client.show(id)
        await handle.terminate("z")
        reason = (await client.show(id))["reason"] or {}
    assert [row["who"] for row in story["operator"]][:2] == ["the owner (unverified)", "ada"]
    assert "(unverified)" in str(story["operator"][2:]) + str(reason)


async def is_parked(client: Client, id: str, decisions: int) -> bool:
    story = await client.show(id)
    return story["state"] == "PARKED" and len(story["operator"]) == decisions
