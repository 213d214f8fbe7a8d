"""The lifecycle of a saga beyond one worker: undo, ids, reset, terminate, other workers, versions."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from functools import partial

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowFailureError
from temporalio.common import WorkerDeploymentVersion
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import Worker

from saga_cli.shared_options import warn_without_poller
from saga_workers.client import Client
from saga_workers.doctor.checks import _check_pollers
from saga_workers.doctor.saga_checks import check_sagas
from saga_workers.stuck.stuck_sagas import list_stuck, remedy
from saga_workers.temporal.worker_deployments import version_to_make_current
from saga_workers.views.saga_list import SagaFilter
from saga_workers.views.saga_view import read_view
from saga_workers.worker.plugin import SagaPlugin
from sagas import Rejected
from sagas.errors import RefusedError
from sagas.protocol.payloads import RESET_ACTIVITY
from sagas.text.exact_json import decode_json
from tests.helpers.local_worker import finished, running_worker
from tests.helpers.run_changes import reset_run
from tests.helpers.waiting import until
from tests.integration.engine.environment import (
    Environment,
    begin,
    gate,
    handle,
    row,
    run_saga,
    send_signed,
    states,
    wait_for_event,
)
from tests.integration.engine.workers.user_workflow import Greeting, greet

PLAIN = """
    saga: plain
    input: {type: object, properties: {n: {type: integer, default: 1}}}
    steps:
      - {id: a, uses: book, compensate: unbook}
      - {id: b, uses: book, compensate: unbook}
    output: 1
"""


async def test_a_completed_saga_and_its_undo_share_one_view(env: Environment) -> None:
    async with env.serving(PLAIN) as client:
        saga = (await run_saga(client, "plain"))["id"]
        await (await client.undo(saga, reason="returned", who="ada")).result()
        story = await client.show(saga)
    assert (story["state"], story["reason"]["kind"], story["id"]) == ("COMPENSATED", "undone", saga)
    assert env.log() == ["do a", "do b", "undo b", "undo a"]
    assert await env.effects() == []


async def test_a_saga_past_its_pivot_cannot_be_undone(env: Environment) -> None:
    definition = "    saga: final\n    steps:\n      - {id: p, uses: book, pivot: true}\n"
    async with env.serving(definition) as client:
        saga = (await run_saga(client, "final"))["id"]
        queue = client.project.settings.temporal.task_queue
        run = await client.temporal.start_workflow("final", {}, id=f"{saga}~undo", task_queue=queue)
        with pytest.raises(WorkflowFailureError) as refused:
            await run.result()
    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.type == "SagaRefused"
    assert await env.effects() == ["p"]


async def test_again_starts_the_next_generation_of_an_id(env: Environment) -> None:
    async with env.serving(PLAIN) as client:
        env.plan["do b"] = [Rejected("no")]
        saga = (await run_saga(client, "plain"))["id"]
        with pytest.raises(RefusedError, match="COMPENSATED"):
            await client.start("plain", {}, id=saga)
        env.plan.clear()
        run = await client.start("plain", {}, id=saga, again=True)
        assert run.started
        story = await finished(client, saga)
        assert (story["state"], story["generation"]) == ("COMPLETED", 2)
        assert env.asked[-1].key == f"{saga}/b@2"
        again = await client.start("plain", {}, id=saga)
        assert (again.started, await again.result()) == (False, 1)
        with pytest.raises(RefusedError, match="another input"):
            await client.start("plain", {"n": 2}, id=saga)
    assert await env.effects() == ["a", "b"]


async def test_a_reset_run_reuses_stored_values_without_duplicates(env: Environment) -> None:
    async with env.serving(PLAIN) as client:
        saga = (await run_saga(client, "plain"))["id"]
        await reset_run(client.temporal, saga)
        story = await finished(client, saga)
        assert story["state"] == "COMPLETED"
        assert env.log() == ["do a", "do b"], "the guard answered"
    assert await env.effects() == ["a", "b"]


async def test_a_reset_of_an_undone_run_begins_nothing(env: Environment) -> None:
    env.plan["do b"] = [Rejected("no")]
    async with env.serving(PLAIN) as client:
        saga = (await run_saga(client, "plain"))["id"]
        env.plan.clear()
        before = env.log()
        await reset_run(client.temporal, saga)
        story = await finished(client, saga)
        assert env.log() == before
    # The run that has undone it tells of its steps.
    assert (story["state"], story["reason"]["kind"], states(story)["a"]) == ("COMPENSATED", "rejected", "COMPENSATED")
    assert await env.effects() == []


PAYS = """
    saga: pays
    steps:
      - {id: hold, uses: book, compensate: unbook}
      - {id: move, uses: book, with: {value: wrong}, pivot: true, on_failure: park}
      - {id: ask, uses: wait, with: {signal: go}, timeout: 1h}
"""


async def test_a_reset_run_leaves_the_pivot_that_a_correction_has_done(env: Environment) -> None:
    env.plan["do move"] = [Rejected("no"), {"value": "right"}]
    async with env.serving(PAYS) as client:
        saga = (await run_saga(client, "pays"))["id"]
        await send_signed(client, saga, retry("move", {"value": "right"}))
        await until(lambda: shows(client, saga, "ask"), "the saga is past its pivot")
        await reset_run(client.temporal, saga)
        story = await finished(client, saga)
        assert (story["state"], row(story, "move")["generation"]) == ("PARKED", 2)
        assert "other arguments" in story["parked"][0]["why"]
        with pytest.raises(RefusedError, match="past the point of no return"):
            await client.cancel(saga, reason="a test", who="ada")
        await send_signed(client, saga, retry("move", {"value": "right"}))
        await until(lambda: shows(client, saga, "ask"), "the stored result counts")
        await handle(client, saga).signal("go", {})
        assert (await finished(client, saga))["state"] == "COMPLETED"
    assert await env.effects() == ["hold", "move"]


async def test_each_reset_of_a_run_has_an_answer_of_its_own(env: Environment, caplog: pytest.LogCaptureFixture) -> None:
    """Else the signed answer to the first reset could be given once more after the second."""
    async with env.serving(PAYS) as client:
        saga = await begin(client, "pays")
        await until(lambda: shows(client, saga, "ask"))
        for count in (1, 2):
            await reset_run(client.temporal, saga, (await _completed_tasks(client, saga))[-1])
            await until(partial(_are_answered, client, saga, count), pause=0.5)
        questions = await _questions_after_resets(client, saga)
        await handle(client, saga).signal("go", {})
        assert (await finished(client, saga))["state"] == "COMPLETED"
    first, second = (question["reset"] for question in questions)
    assert first != second
    assert "nothing is signed" not in caplog.text, "a replay asks again what was asked before it"


async def _questions_after_resets(client: Client, saga: str) -> list[dict[str, object]]:
    calls = [call.activity_task_scheduled_event_attributes for call in await _events(client, saga, "SCHEDULED")]
    return [decode_json(call.input.payloads[0].data) for call in calls if call.activity_type.name == RESET_ACTIVITY]


async def _are_answered(client: Client, saga: str, count: int) -> bool:
    """The resets are looked up, and the last workflow task knows it. The run learns of a reset with a message."""
    await handle(client, saga).signal("nothing")
    answers = [event.event_id for event in await _events(client, saga, "COMPLETED")]
    asked = len(await _questions_after_resets(client, saga))
    return asked == count and (await _completed_tasks(client, saga))[-1] > answers[-1]


async def _completed_tasks(client: Client, saga: str) -> list[int]:
    completed = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    return [
        event.event_id async for event in handle(client, saga).fetch_history_events() if event.event_type == completed
    ]


async def _events(client: Client, saga: str, what: str) -> list[HistoryEvent]:
    type = EventType.Value(f"EVENT_TYPE_ACTIVITY_TASK_{what}")
    return [event async for event in handle(client, saga).fetch_history_events() if event.event_type == type]


def retry(step: str, arguments: dict[str, str]) -> dict[str, object]:
    return {"step": step, "decision": "retry", "reason": "because", "who": "ada", "with": arguments}


async def shows(client: Client, saga: str, step: str) -> bool:
    return row((await client.show(saga)), step)["state"] == "RUNNING"


async def test_terminate_compensates_nothing_and_says_so(env: Environment) -> None:
    move, begun, go = gate()
    env.plan["do b"] = [move]
    async with env.serving(PLAIN) as client:
        saga = await begin(client, "plain")
        await wait_for_event(begun)
        await handle(client, saga).terminate("enough")
        go.set()
        story = await client.show(saga)
        assert story["state"] == "TERMINATED"
        with pytest.raises(RefusedError, match="terminated"):
            await client.start("plain", {}, id=saga)
    assert "undo a" not in env.log()


async def test_sagas_run_next_to_a_user_workflow_in_the_sandbox(env: Environment) -> None:
    async with env.serving(PLAIN):
        pass
    assert env.project is not None
    temporal = await Temporal.connect(env.address, plugins=[SagaPlugin(env.project)])
    queue = env.project.settings.temporal.task_queue
    async with Worker(temporal, task_queue=queue, workflows=[Greeting], activities=[greet]):
        assert (
            await temporal.execute_workflow(Greeting.run, "ada", id=f"greet-{queue}", task_queue=queue) == "hello ada"
        )
        assert await temporal.execute_workflow("plain", {}, id=f"plain-{queue}", task_queue=queue) == 1
    assert await env.effects() == ["a", "b"]


@pytest.mark.slow
async def test_a_running_saga_stays_on_its_build(env: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    definition = PLAIN.replace("      - {id: b,", "      - {id: w, uses: wait, with: {signal: go}}\n      - {id: b,")
    definition = definition.replace("unbook", "unwork").replace("book", "work")
    name = f"builds-{uuid.uuid4()}"
    first, second = WorkerDeploymentVersion(name, "1.0"), WorkerDeploymentVersion(name, "2.0")
    short = timedelta(seconds=1)
    async with env.serving(definition, deployment=first, grace=short) as client:
        project = env.project
        assert project is not None
        queue = project.settings.temporal.task_queue
        # Temporal has no task for a version that is not current, and says nothing.
        assert await until(lambda: version_to_make_current(client.temporal, queue)) == first
        [result, *_] = await _check_pollers(client.temporal, project.settings, project)
        command = f"temporal worker deployment set-current-version --deployment-name {name} --build-id 1.0"
        assert (result.ok, result.help) == (False, command)
        assert await warn_without_poller(client)
        assert f"no version of the deployment {name} is current" in (warned := capsys.readouterr().err)
        assert f"help: {command}" in warned
        await _explains_waiting(client, f"no version of the deployment {name} is current", command)
        await _make_current(client.temporal, first)
        await until(lambda: _is_current(client.temporal, queue))
        assert not await warn_without_poller(client)
        old = await begin(client, "plain")
        await until(lambda: "do a" in env.log())
        async with running_worker(project, deployment=second, grace=short):
            await _make_current(client.temporal, second)
            new = await begin(client, "plain")
            for saga in (old, new):
                await client.signal(saga, "go")
                assert (await finished(client, saga))["state"] == "COMPLETED"
            assert await _builds(client.temporal, old) == {"1.0"}
            assert await _builds(client.temporal, new) == {"2.0"}


async def _explains_waiting(client: Client, why: str, command: str) -> None:
    """A saga that waits for a current version is explained by it wherever somebody looks."""
    assert client.project is not None
    waiting = await begin(client, "plain")
    reason = f"{why}, so no saga starts (`{command}` makes one current)"
    assert (await read_view(client.locator, waiting)).incomplete == f"{reason}, so the saga cannot be queried"
    criteria = SagaFilter(task_queue=client.project.settings.temporal.task_queue)
    [view] = [view async for view in list_stuck(client.locator, criteria, limit=10)]
    assert (view.id, view.stuck, remedy(view)) == (waiting, (reason,), command)
    [line] = await check_sagas(client.temporal, client.project, databases=False)
    assert (line.message, line.help) == (f"{waiting}: {reason}", command)


async def _is_current(temporal: Temporal, queue: str) -> bool:
    return await version_to_make_current(temporal, queue) is None


async def _builds(temporal: Temporal, saga: str) -> set[str]:
    events = (await temporal.get_workflow_handle(saga).fetch_history()).events
    done = [
        e.workflow_task_completed_event_attributes
        for e in events
        if e.HasField("workflow_task_completed_event_attributes")
    ]
    return {outcome.deployment_version.build_id for outcome in done}


async def _make_current(temporal: Temporal, version: WorkerDeploymentVersion) -> None:
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=temporal.namespace, deployment_name=version.deployment_name, build_id=version.build_id
    )
    for _ in range(100):
        try:
            await temporal.workflow_service.set_worker_deployment_current_version(request)
            return
        except RPCError:  # its first poll has not arrived yet
            await asyncio.sleep(0.1)
    raise AssertionError("the deployment did not appear")
