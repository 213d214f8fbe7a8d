"""Signals between a saga and its nested sagas that neither has sent: any client of Temporal can send them."""

from __future__ import annotations

from typing import Any

from temporalio.client import WorkflowHistoryEventFilterType
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from sagas.builtins.signal_names import CANCEL_SIGNAL, PARKED_SIGNAL
from sagas.errors import SagaError
from sagas.protocol.signed_content import message_content
from sagas.text.exact_json import decode_json
from sagas.workflow.saga_workflow import SagaWorkflow
from tests.helpers.local_worker import running_worker
from tests.helpers.waiting import until
from tests.integration.trust.conftest import Shop

PARENT = """
saga: parent
steps:
  - {id: nested, uses: saga, with: {name: child}}
"""
CHILD = """
saga: child
steps:
  - {id: done, uses: say, with: {text: done}, compensate: {uses: say, with: {text: undone}}}
  - {id: broken, uses: broken, with: {text: own}, on_failure: park, compensate: {uses: say, with: {text: undone}}}
  - {id: approval, uses: wait, with: {signal: approved}}
"""
PARKED = {"step": "done", "op": "do", "since": "2026-01-01T00:00:00Z", "why": "forged", "decisions": ["skip"]}


async def _sent(client: Any, id: str, name: str) -> list[dict[str, Any]]:
    events = client.temporal.get_workflow_handle(id).fetch_history_events(
        event_filter_type=WorkflowHistoryEventFilterType.ALL_EVENT
    )
    signals = [event.workflow_execution_signaled_event_attributes async for event in events]
    return [decode_json(signal.input.payloads[0].data) for signal in signals if signal.signal_name == name]


async def test_only_the_latest_report_of_a_nested_saga_counts(shop: Shop) -> None:
    folder = shop.project.settings.definitions[0]
    for name, text in (("parent", PARENT), ("child", CHILD)):
        (folder / f"{name}.saga.yaml").write_text(text, encoding="utf-8")
    shop.project = shop.with_keys("k" * 32)
    async with running_worker(shop.project) as client:
        run, other = await client.start("parent", {}), await client.start("parent", {})
        handle = client.temporal.get_workflow_handle(run.id)
        child = f"{run.id}/nested"

        async def shown() -> str:
            return str((await client.show(run.id))["parked"])

        async def is_parked(id: str) -> bool:
            return "broken" in str((await client.show(id))["parked"])

        await until(lambda: is_parked(run.id))
        await until(lambda: is_parked(other.id))
        [genuine] = await _sent(client, run.id, PARKED_SIGNAL)
        [foreign] = await _sent(client, other.id, PARKED_SIGNAL)
        later = genuine["at"] + 1
        wait = {"id": child, "saga": "child", "commands": ["rm -r"], **PARKED}
        forged = {"id": child, "state": "PARKED", "blocked": True, "waits": [wait], "at": later}
        keys, to_another_run = shop.project.settings.signing_keys(), message_content([other.id, other.run_id], forged)
        for report in (
            forged,
            {**forged, "signature": genuine["signature"]},
            {**genuine, "waits": []},
            {**genuine, "at": later},
            {**foreign, "id": child, "at": later},
            {**forged, "signature": keys.sign("report", to_another_run)},
        ):
            await handle.signal(PARKED_SIGNAL, report)
        before = await shown()
        assert "forged" not in before
        assert "broken" in before

        await client.resolve(child, {"step": "broken", "decision": "skip", "reason": "known", "who": "me"})

        async def is_free() -> bool:
            return await shown() == "[]"

        await until(is_free)
        await handle.signal(PARKED_SIGNAL, genuine)
        assert await shown() == "[]", "the report was sent before the decision"
        history = await handle.fetch_history()
        for id in (child, f"{other.id}/nested"):
            await client.temporal.get_workflow_handle(id).terminate()
    replayer = Replayer(workflows=[SagaWorkflow], workflow_runner=UnsandboxedWorkflowRunner())
    assert (await replayer.replay_workflow(history)).replay_failure is None


async def test_only_a_parent_cancels_as_the_parent(shop: Shop) -> None:
    """A client that sends the signal of a parent cancels as a client, as by Temporal's own cancel."""
    folder = shop.project.settings.definitions[0]
    for name, text in (("parent", PARENT), ("child", CHILD)):
        (folder / f"{name}.saga.yaml").write_text(text, encoding="utf-8")
    shop.project = shop.with_keys("k" * 32)
    async with running_worker(shop.project) as client:

        async def begun() -> str:
            run = await client.start("parent", {})
            await until(lambda: _waits(client, f"{run.id}/nested"))
            return run.id

        async def cancelled(child: str) -> tuple[str, str]:
            await until(lambda: _is_over(client, child))
            story = await client.show(child)
            return story["state"], story["reason"]["kind"]

        parent = await begun()
        await client.cancel(parent)
        assert await cancelled(f"{parent}/nested") == ("COMPENSATED", "parent")
        [genuine] = await _sent(client, f"{parent}/nested", CANCEL_SIGNAL)
        histories = [await client.temporal.get_workflow_handle(f"{parent}/nested").fetch_history()]
        for arguments in ([], ["enough"], [genuine], [{"reason": 7}], [7]):
            child = f"{await begun()}/nested"
            handle = client.temporal.get_workflow_handle(child)
            await handle.signal(CANCEL_SIGNAL, args=arguments)
            assert await cancelled(child) == ("COMPENSATED", "cancelled"), arguments
            histories.append(await handle.fetch_history())
    replayer = Replayer(workflows=[SagaWorkflow], workflow_runner=UnsandboxedWorkflowRunner())
    for history in histories:
        assert (await replayer.replay_workflow(history)).replay_failure is None


async def _waits(client: Any, id: str) -> bool:
    try:
        return "broken" in str((await client.show(id))["parked"])
    except SagaError:
        return False  # it has not started yet


async def _is_over(client: Any, id: str) -> bool:
    return (await client.show(id))["state"] == "COMPENSATED"
