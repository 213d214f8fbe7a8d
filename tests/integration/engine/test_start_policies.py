"""The policies with which any Temporal client may start a saga, as docs/how-to/other-languages says of each."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_tables
from saga_workers.client import Client
from sagas import Rejected, Step, action
from tests.helpers.local_worker import finished, make_project, running_worker
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import until

BOOKING = """
saga: policy
input: {type: object, required: [refuse], properties: {refuse: {type: boolean}}}
steps:
  - {id: take, uses: policy.take, compensate: {uses: policy.give, with: {}}}
  - {id: go, uses: wait, with: {signal: go}}
  - {id: ask, uses: policy.ask, effect: none, with: {refuse: "${{ input.refuse }}"}}
"""

FAIL, USE_EXISTING = WorkflowIDConflictPolicy.FAIL, WorkflowIDConflictPolicy.USE_EXISTING
REJECT = WorkflowIDReusePolicy.REJECT_DUPLICATE


class Booking:
    """A saga with one effect, which waits for its signal; ``effects`` are the present ones."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.id = f"policy-{uuid.uuid4().hex[:12]}"

    async def start(self, *, refuse: bool = False, **policies: Any) -> str | None:
        """Start it as a plain client does; returns the id of the run."""
        queue = self.client.project.settings.temporal.task_queue
        handle = await self.client.temporal.start_workflow(
            "policy", {"refuse": refuse}, id=self.id, task_queue=queue, **policies
        )
        return handle.first_execution_run_id or handle.result_run_id

    async def waits(self) -> None:
        async def waiting() -> bool:
            steps = (await self.client.show(self.id))["steps"]
            return any(step["id"] == "go" and step["state"] == "RUNNING" for step in steps)

        await until(waiting)

    async def end(self) -> dict[str, Any]:
        await self.client.temporal.get_workflow_handle(self.id).signal("go")
        return await finished(self.client, self.id)


@pytest.fixture
async def booking(temporal: TemporalServer, tmp_path: Path) -> AsyncIterator[tuple[Booking, list[str]]]:
    url, effects = f"sqlite:///{tmp_path / 'shop.db'}", []
    engine = open_engine("shop", url, 1)
    await create_tables(engine)
    await engine.dispose()

    @action("policy.take", connection="shop")
    async def take(step: Step) -> None:
        effects.append(step.saga_id)

    @action("policy.give", connection="shop")
    async def give(step: Step) -> None:
        effects.remove(step.saga_id)

    @action("policy.ask")
    async def ask(step: Step, refuse: bool) -> None:
        if refuse:
            raise Rejected("no")

    connections = {"shop": url}
    actions = [take, give, ask]
    project = make_project(tmp_path, {"policy": BOOKING}, actions, address=temporal.address, connections=connections)
    async with running_worker(project) as client:
        yield Booking(client), effects


async def test_a_rejected_duplicate_leaves_the_first_run_alone(booking: tuple[Booking, list[str]]) -> None:
    saga, effects = booking
    await saga.start(id_reuse_policy=REJECT, id_conflict_policy=FAIL)
    await saga.waits()
    with pytest.raises(WorkflowAlreadyStartedError):
        await saga.start(id_reuse_policy=REJECT, id_conflict_policy=FAIL)
    assert (await saga.end())["state"] == "COMPLETED"
    with pytest.raises(WorkflowAlreadyStartedError):
        await saga.start(id_reuse_policy=REJECT, id_conflict_policy=FAIL)
    assert effects == [saga.id]


async def test_an_existing_run_takes_a_repeated_start(booking: tuple[Booking, list[str]]) -> None:
    saga, effects = booking
    first = await saga.start(id_reuse_policy=REJECT, id_conflict_policy=USE_EXISTING)
    await saga.waits()
    assert await saga.start(id_reuse_policy=REJECT, id_conflict_policy=USE_EXISTING) == first
    assert (await saga.end())["state"] == "COMPLETED"
    assert effects == [saga.id]


@pytest.mark.parametrize("policy", ["ALLOW_DUPLICATE", "ALLOW_DUPLICATE_FAILED_ONLY"])
async def test_a_second_run_after_an_undo_is_late_and_without_effect(
    booking: tuple[Booking, list[str]], policy: str
) -> None:
    saga, effects = booking
    await saga.start(refuse=True)
    await saga.waits()
    assert (await saga.end())["state"] == "COMPENSATED"
    await saga.start(id_reuse_policy=WorkflowIDReusePolicy[policy])
    story = await finished(saga.client, saga.id)
    assert (story["state"], story["reason"]["kind"]) == ("COMPENSATED", "late")
    assert effects == []
