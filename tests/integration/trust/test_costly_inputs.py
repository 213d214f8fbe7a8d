"""Costs of a small input: nothing that delays a workflow task, or the sagas of others."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from saga_activities.input_checks import check_together
from saga_workers.client import Client
from saga_workers.input_limits import MAX_TASK_CHECK_STEPS
from saga_workers.start.bulk_rows import cut_rows
from saga_workers.start.row_starts import StartRow
from saga_workers.start.start_limits import MAX_SHARED_INPUTS, shared_size
from saga_workers.start.start_requests import StartRequest
from saga_workers.temporal.temporal_client import to_header
from saga_workers.worker.worker_trust import WorkerTrust
from sagas.definition.input_validation import validate_input
from sagas.definition.snapshot import to_snapshot
from sagas.errors import UsageError
from sagas.expressions.work_budget import bounded
from sagas.input_limits import MAX_CHECK_STEPS
from sagas.project import Project
from sagas.protocol.signed_start import sign_start
from tests.helpers.local_worker import make_project, running_worker
from tests.helpers.nested_lists import nested_list
from tests.helpers.processes import TemporalServer
from tests.helpers.waiting import LIMIT
from tests.integration.trust.conftest import Shop

TREE = """
saga: tree
input:
  type: object
  properties: {tree: {$ref: "#/$defs/tree"}}
  $defs:
    tree:
      anyOf:
        - {type: array, items: {$ref: "#/$defs/tree"}, contains: {const: 0}}
        - {type: array, items: {$ref: "#/$defs/tree"}}
        - {type: string}
steps:
  - {id: say, uses: say, with: {text: x}, effect: none}
"""

GROWING = """
saga: growing
input:
  type: object
  properties:
    rows: {type: array, items: {type: object, properties: {note: {type: string, default: NOTE}}}}
    texts: {type: array}
steps:
  - {id: say, uses: say, with: {text: x}, effect: none}
""".replace("NOTE", "x" * 200)


def tree(levels: int) -> Any:
    """A valid input, for which each level doubles the work."""
    return {"tree": nested_list(levels)}


COSTLY, TOO_COSTLY = tree(11), tree(80)


@pytest.fixture
def project(shop: Shop, tmp_path: Path, temporal: TemporalServer) -> Project:
    return make_project(tmp_path / "tree", {"tree": TREE, "growing": GROWING}, shop.actions, address=temporal.address)


def steps(project: Project, input: Any) -> int:
    with bounded() as budget:
        assert validate_input(project.definition("tree"), input)[1] == []
    return MAX_CHECK_STEPS - budget.remaining


async def test_a_costly_input_is_checked_outside_of_the_workflow_task(project: Project) -> None:
    assert MAX_TASK_CHECK_STEPS < steps(project, COSTLY) < MAX_CHECK_STEPS
    async with running_worker(project) as client:
        run = await client.start("tree", COSTLY)
        await run.result()
        events = (await client.temporal.get_workflow_handle(run.id).fetch_history()).events
        assert [
            event.activity_task_scheduled_event_attributes.activity_type.name
            for event in events
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        ] == ["saga.verify", "say"]
        assert not [event for event in events if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED]
        with pytest.raises(UsageError, match="the input is too large for the schema"):
            await client.start("tree", TOO_COSTLY)


def test_the_inputs_of_one_workflow_task_share_its_steps(project: Project) -> None:
    trust, keys = WorkerTrust(project), project.settings.signing_keys()
    sent = {"definition": to_snapshot(project.definition("tree")), "vars": {}, "attributes": []}
    header, each = to_header(sent).data, steps(project, tree(8))
    enough = MAX_TASK_CHECK_STEPS // each
    assert enough > 1
    for count, at_once in ((1, True), (enough, True), (enough + 1, False)):
        starts = {f"tree-{number}": tree(8) for number in range(count)}
        signature = sign_start(keys, "shared", header, starts, at=time.time())
        assert trust.trusts_start("tree", "shared", starts, header, signature, time.time()) is at_once, count


@pytest.mark.slow
async def test_an_unbounded_input_of_any_client_is_refused(project: Project) -> None:
    async with running_worker(project) as client:
        queue = project.settings.temporal.task_queue
        handle = await client.temporal.start_workflow("tree", TOO_COSTLY, id="tree-unbounded", task_queue=queue)
        with pytest.raises(WorkflowFailureError) as failed:
            await asyncio.wait_for(handle.result(), LIMIT)
        assert "too large for the schema" in str(failed.value.cause)


@pytest.mark.parametrize("value", [{"texts": ["x" * 1000] * 2050}, {"rows": [{}] * 20_000}], ids=["sent", "completed"])
async def test_an_input_that_is_too_large_for_a_call_of_temporal_is_refused(project: Project, value: Any) -> None:
    """The workflow task, or the activity, would fail again and again."""
    async with running_worker(project) as client:
        queue = project.settings.temporal.task_queue
        id = f"growing-{next(iter(value))}"
        handle = await client.temporal.start_workflow("growing", value, id=id, task_queue=queue)
        with pytest.raises(WorkflowFailureError) as failed:
            await asyncio.wait_for(handle.result(), LIMIT)
        assert "Temporal accepts" in str(failed.value.cause)


@pytest.mark.slow  # it measures times, which a machine that does something else spoils
async def test_costly_inputs_do_not_delay_the_starts_of_others(project: Project) -> None:
    async with running_worker(project) as client:
        queue = project.settings.temporal.task_queue

        async def median() -> float:
            taken = []
            for _ in range(15):
                began = time.monotonic()
                await (await client.start("tree", tree(1))).result()
                taken.append(time.monotonic() - began)
            return sorted(taken)[7]

        usual = await median()
        hostile = [
            await client.temporal.start_workflow("tree", TOO_COSTLY, id=f"tree-{usual}-{number}", task_queue=queue)
            for number in range(8)
        ]
        disturbed = await median()
        assert disturbed < 2 * usual + 1  # a core that is shared by other tests needs some room
        for handle in hostile:
            with contextlib.suppress(RPCError):  # it was refused meanwhile
                await handle.terminate()


@pytest.mark.slow
async def test_inputs_that_share_a_start_share_the_steps_of_one(project: Project) -> None:
    definition, cost = project.definition("tree"), steps(project, COSTLY)
    count = MAX_CHECK_STEPS // cost + 1
    refused = (await check_together(definition, {f"tree-{number}": COSTLY for number in range(count)})).refused
    assert list(refused) == [f"tree-{count - 1}"]
    assert refused[f"tree-{count - 1}"].startswith("the input of tree is not valid: input: the input is too large")
    # One that uses up the steps is refused itself, wherever it is.
    for hostile in ("tree-0", "tree-5"):
        inputs = {f"tree-{number}": tree(1) for number in range(6)}
        assert list((await check_together(definition, {**inputs, hostile: TOO_COSTLY})).refused) == [hostile]
    # So clients that share a workflow put fewer of them into one, and start a very costly one alone.
    request = StartRequest(COSTLY, None, {}, cost)
    rows = [StartRow(str(number), str(number), request) for number in range(2 * count)]
    parts = list(cut_rows(rows, 500))
    assert sum(map(len, parts)) == len(rows)
    assert max(map(len, parts)) < count
    assert shared_size(StartRequest({}, None, {}, MAX_CHECK_STEPS), 2) > MAX_SHARED_INPUTS // 2


async def test_a_client_says_what_an_input_costs(project: Project) -> None:
    async with running_worker(project) as client:
        starter = await Client(client.temporal, project).starter("tree")
        assert (await starter.check(COSTLY)).steps == steps(project, COSTLY)
