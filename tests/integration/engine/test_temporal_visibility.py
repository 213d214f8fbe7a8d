"""Sagas as Temporal shows them: ids, summaries, details, search attributes, memo, close status."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, CancelledError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from saga_workers.client import Client
from sagas import Rejected
from tests.helpers.local_worker import finished
from tests.integration.engine.environment import Environment, begin, handle, resolve, run_saga

THREE = """
    saga: three
    steps:
      - {id: a, name: Take the first, uses: book, compensate: unbook}
      - {id: b, name: Take the second, uses: book, compensate: unbook}
      - {id: c, name: Take the third, uses: book, compensate: {uses: unbook, retry: {max_attempts: 1}}}
      - {id: d, uses: require, with: {that: "${{ !input.no }}"}}
    input: {type: object, properties: {no: {type: boolean, default: false}}}
    output: "done"
"""


async def events(client: Client, saga: str) -> list[HistoryEvent]:
    return list((await handle(client, saga).fetch_history()).events)


async def test_a_completed_saga_costs_one_event_more_than_a_hand_written_workflow(env: Environment) -> None:
    @activity.defn
    async def nothing() -> None: ...

    async with env.serving(THREE) as client:
        story = await run_saga(client, "three")
        ours = await events(client, story["id"])
        queue = f"{story['id']}-hand"
        options: Any = {"workflows": [HandWritten], "activities": [nothing]}
        options["workflow_runner"] = UnsandboxedWorkflowRunner()
        async with Worker(client.temporal, task_queue=queue, **options):
            await client.temporal.execute_workflow(HandWritten.run, id=queue, task_queue=queue)
        theirs = await events(client, queue)
    kinds = kinds_without_timeouts(ours)
    assert len(kinds) == len(kinds_without_timeouts(theirs)) + 1, "\n".join(kinds)
    assert kinds.count("WORKFLOW_PROPERTIES_MODIFIED") == 1, "the memo at close, which `show` reads without a worker"
    assert "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES" not in kinds


def kinds_without_timeouts(history: list[HistoryEvent]) -> list[str]:
    """The types of the events; a workflow task that no worker took in time, on a busy machine, has none."""
    late = {
        event.workflow_task_timed_out_event_attributes.scheduled_event_id
        for event in history
        if event.HasField("workflow_task_timed_out_event_attributes")
    }
    names = {event.event_id: EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history}
    return [name for id, name in names.items() if id not in late and name != "WORKFLOW_TASK_TIMED_OUT"]


@workflow.defn
class HandWritten:
    @workflow.run
    async def run(self) -> None:
        for _ in range(3):
            await workflow.execute_activity("nothing", start_to_close_timeout=timedelta(seconds=5))


async def test_activity_ids_and_summaries(env: Environment) -> None:
    async with env.serving(THREE) as client:
        story = await run_saga(client, "three", {"no": True})
        rows = [
            (e.activity_task_scheduled_event_attributes, json.loads(e.user_metadata.summary.data))
            for e in await events(client, story["id"])
            if e.HasField("activity_task_scheduled_event_attributes")
        ]
        described = await handle(client, story["id"]).describe()
    assert [(row.activity_id, row.activity_type.name, summary) for row, summary in rows] == [
        ("a", "book", "Take the first"),
        ("b", "book", "Take the second"),
        ("c", "book", "Take the third"),
        ("c~undo", "unbook", "↩ undo Take the third"),
        ("b~undo", "unbook", "↩ undo Take the second"),
        ("a~undo", "unbook", "↩ undo Take the first"),
    ]
    assert described.workflow_type == "three"
    for row, _ in rows:
        assert row.retry_policy.maximum_attempts >= 1
        assert row.start_to_close_timeout.seconds == 30
    assert (await described.memo())["saga"]["state"] == "COMPENSATED"


async def test_the_run_has_no_timeouts_and_no_retry_policy(env: Environment) -> None:
    async with env.serving(THREE.replace("    steps:", "    deadline: 1h\n    steps:", 1)) as client:
        story = await run_saga(client, "three")
        started = (await events(client, story["id"]))[0].workflow_execution_started_event_attributes
    assert not started.workflow_execution_timeout.ToTimedelta()
    assert not started.workflow_run_timeout.ToTimedelta()
    assert not started.HasField("retry_policy"), "it would run the saga again from its first step"
    assert len(started.input.payloads) == 1


async def test_names_above_the_temporal_limit_are_truncated(env: Environment) -> None:
    long = "Ä" * 390
    async with env.serving(THREE.replace("Take the first", long)) as client:
        story = await run_saga(client, "three")
    assert story["state"] == "COMPLETED"
    assert story["steps"][0]["name"] == long


async def test_a_long_definition_can_be_started(env: Environment) -> None:
    steps = "\n".join(
        f"      - {{id: s{n}, name: A rather long sentence about step {n}, uses: book, compensate: unbook}}"
        for n in range(300)
    )
    async with env.serving(f"    saga: long\n    steps:\n{steps}\n") as client:
        saga = await begin(client, "long")
        await handle(client, saga).terminate()


async def test_each_outcome_closes_the_run_with_its_status(env: Environment) -> None:
    env.plan["undo c"] = [Rejected("cannot")]
    async with env.serving(THREE) as client:
        saga = await begin(client, "three", {"no": True})
        story = await finished(client, saga)
        assert story["state"] == "PARKED"
        assert (await handle(client, saga).describe()).status is WorkflowExecutionStatus.RUNNING
        assert await attributes(client, saga) == {"SagaState": "PARKED", "SagaStep": "c", "SagaReason": "rejected"}
        text = await details(client, saga)
        assert "**three** is **PARKED**" in text
        assert f"saga resolve {saga} c retry" in text
        story = await resolve(client, saga, "c", "skip")
        assert story["state"] == "RESIDUE"
        residue = await failure(client, saga)
        assert (residue.type, residue.category) == ("SagaResidue", ApplicationErrorCategory.BENIGN)
        assert residue.details[0]["residue"][0]["kind"] == "effect_stays"
        assert (await attributes(client, saga))["SagaState"] == "RESIDUE"

        env.plan.clear()
        async with env.engine.begin() as connection:
            await connection.exec_driver_sql("delete from effects")
        story = await run_saga(client, "three", {"no": True})
        undone = await failure(client, story["id"])
        assert (undone.type, undone.non_retryable) == ("SagaCompensated", True)
        assert undone.details[0]["state"] == "COMPENSATED"
        assert (
            undone.message == "undone: rejected at d: the requirement is not met: `!input.no`, where input.no is true"
        )
        assert (await attributes(client, story["id"]))["SagaState"] == "COMPENSATED"

        good = await run_saga(client, "three")
        assert await handle(client, good["id"]).result() == "done"
        assert await attributes(client, good["id"]) == {}
        assert "This saga has ended." in await details(client, good["id"])


async def test_a_completed_saga_is_no_longer_shown_as_parked(env: Environment) -> None:
    definition = """
        saga: mended
        steps:
          - {id: a, uses: book, compensate: unbook, on_failure: park}
    """
    env.plan["do a"] = [Rejected("not yet"), "now"]
    async with env.serving(definition) as client:
        story = await run_saga(client, "mended")
        assert story["state"] == "PARKED"
        story = await resolve(client, story["id"], "a", "retry")
        assert (story["state"], story["steps"][0]["generation"]) == ("COMPLETED", 2)
        assert story["operator"][0]["who"] == "ada"
        assert (await attributes(client, story["id"]))["SagaState"] == "COMPLETED"


async def test_show_needs_no_worker_when_the_saga_is_over(env: Environment) -> None:
    async with env.serving(THREE) as client:
        saga = (await run_saga(client, "three"))["id"]
    story = await client.show(saga)
    assert (story["state"], len(story["steps"])) == ("COMPLETED", 4)


async def test_a_handwritten_client_sees_a_canceled_run(env: Environment) -> None:
    definition = "    saga: waiting\n    steps:\n      - {id: a, uses: wait, with: {signal: never}}\n"
    async with env.serving(definition) as client:
        saga = await begin(client, "waiting")
        await handle(client, saga).cancel()
        with pytest.raises(WorkflowFailureError) as ended:
            await handle(client, saga).result()
    assert isinstance(ended.value.cause, CancelledError)


async def failure(client: Client, saga: str) -> ApplicationError:
    with pytest.raises(WorkflowFailureError) as ended:
        await handle(client, saga).result()
    assert isinstance(ended.value.cause, ApplicationError)
    return ended.value.cause


async def attributes(client: Client, saga: str) -> dict[str, Any]:
    described = await handle(client, saga).describe()
    return {p.key.name: p.value for p in described.typed_search_attributes if p.key.name.startswith("Saga")}


async def details(client: Client, saga: str) -> str:
    metadata: Any = await handle(client, saga).query("__temporal_workflow_metadata")
    return metadata.current_details
