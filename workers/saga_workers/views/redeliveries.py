"""The next start of a compensated saga for its event: how its run stands, and its end by an operator.

A run that has failed stands for an event that is not served, until an operator closes that or starts the saga again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import RawValue, WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.temporal.foreign_payloads import UNREADABLE_PAYLOAD
from saga_workers.temporal.run_history import start_of_run
from saga_workers.temporal.temporal_client import start_headers
from saga_workers.temporal.temporal_runs import RunInfo, count_pollers, describe_run, list_runs
from saga_workers.temporal.visibility_filter import keyword_condition
from sagas.protocol.payloads import OWNER_HEADER, second_workflow_id
from sagas.protocol.redelivery_names import REDELIVERY_MEMO, REDELIVERY_WORKFLOW
from sagas.protocol.saga_view import SagaView
from sagas.protocol.size_limits import MAX_MESSAGE_CHARACTERS
from sagas.text.shell import saga_command
from sagas.text.shortening import shorten_middle
from sagas.workflow.summaries import run_summary

_CLOSING_DELAY = timedelta(hours=1)


async def with_redelivery(temporal: Temporal, view: SagaView, *, closed: bool) -> SagaView:
    """The view with what has become of the next start. ``closed``: the run of the saga is, so that of the next start
    has begun.
    """
    due = view.redelivery
    if due is None or due.run is None:
        return view
    run = await _find(temporal, view.id, due.run)
    if run is None:
        shown = replace(due, ended="Temporal has no run for it any more") if closed else due
    else:
        unserved = run.status is WorkflowExecutionStatus.FAILED
        shown = replace(due, run=run.id, ended=await _end(run), unserved=unserved or None)
    return replace(view, redelivery=shown)


async def end_redelivery(temporal: Temporal, view: SagaView, why: str, timeout: float) -> bool | None:
    """Cancel the next start of the saga; ``why`` is recorded. Returns whether it has been started before that; None if
    no worker has answered within ``timeout`` seconds, and Temporal has the cancel for the next one.

    Raises RPCError. To be called if :attr:`RedeliveryView.is_due`.
    """
    due = view.redelivery
    assert due is not None
    assert due.run is not None
    handle = temporal.get_workflow_handle(due.run)
    try:
        await handle.cancel(reason=why)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:  # it has just ended
            raise
    run = await _find(temporal, view.id, due.run)
    if run is not None and run.running and not await count_pollers(temporal, run.task_queue):
        return None
    try:
        async with asyncio.timeout(timeout):
            result = await handle.result()
    except TimeoutError:
        return None
    except (WorkflowFailureError, *UNREADABLE_PAYLOAD):
        return False
    return isinstance(result, Mapping) and bool(result.get("started"))


async def list_unserved(temporal: Temporal, task_queue: str | None) -> AsyncIterator[str]:
    """The ids of sagas that a run of this kind has failed to start again, or had no start left for."""
    query = f"WorkflowType = '{REDELIVERY_WORKFLOW}' AND ExecutionStatus = 'Failed'"
    if task_queue is not None:
        query += f" AND {keyword_condition('TaskQueue', task_queue)}"
    seen: set[str] = set()
    async for run in list_runs(temporal, query):
        saga_id = run.parent_id
        if task_queue not in (None, run.task_queue) or saga_id is None or saga_id in seen:
            continue
        newest = await describe_run(temporal, run.id)
        if newest is not None and newest.run.run_id == run.run_id:
            seen.add(saga_id)
            yield saga_id


def unserved_reasons(view: SagaView) -> list[str]:
    """The message about the event of this saga that is not served, with the commands; empty if there is none."""
    redelivery = view.redelivery
    if redelivery is None or not redelivery.unserved:
        return []
    again = saga_command("start", view.saga, id=view.id, again=True, input="@FILE")
    close = saga_command("cancel", view.id)
    why = f"its event is not served: {redelivery.ended}"
    return [f"{why}; {again}    starts it with its input or {close}    closes it"]


async def close_unserved(temporal: Temporal, view: SagaView, why: str) -> None:
    """Record that nobody waits for this event any more. To be called if :attr:`RedeliveryView.unserved`.

    The failed run is replaced by one that is terminated before it begins, so no worker is needed. If this process dies
    in between, that one does after the delay what the failed one did.
    """
    due = view.redelivery
    assert due is not None
    assert due.run is not None
    failed = await describe_run(temporal, due.run)
    if failed is None:
        return
    start = await start_of_run(temporal, due.run, failed.run.run_id)
    with start_headers({OWNER_HEADER: view.id}):
        handle = await temporal.start_workflow(
            REDELIVERY_WORKFLOW,
            RawValue(start.input.payloads[0]) if start is not None and start.input.payloads else None,
            id=due.run,
            task_queue=failed.run.task_queue,
            memo={REDELIVERY_MEMO: {"ended": f"closed: {why}", "closed": True}},
            static_summary=run_summary(f"↻ {view.id} is not started again, closed"),
            start_delay=_CLOSING_DELAY,
            id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,
        )
    await handle.terminate(why)


async def _find(temporal: Temporal, saga_id: str, workflow_id: str) -> RunInfo | None:
    """The run that the saga has started for it: Temporal itself writes the parent of a run. One that an operator has
    closed has none.
    """
    for id in (workflow_id, second_workflow_id(workflow_id)):
        described = await describe_run(temporal, id)
        if described is None:
            return None
        run = described.run
        if run.workflow_type == REDELIVERY_WORKFLOW and (run.parent_id == saga_id or await _is_closed(run)):
            return run
    return None


async def _is_closed(run: RunInfo) -> bool:
    if run.status is not WorkflowExecutionStatus.TERMINATED or run.parent_id is not None:
        return False
    memo: Any = (await run.memo()).get(REDELIVERY_MEMO)
    return isinstance(memo, Mapping) and memo.get("closed") is True


async def _end(run: RunInfo) -> str | None:
    """Why the run starts nothing any more; None while it is going to."""
    if run.running:
        return None
    memo: Any = (await run.memo()).get(REDELIVERY_MEMO)
    ended = memo.get("ended") if isinstance(memo, Mapping) else None
    if isinstance(ended, str) and ended:
        return shorten_middle(ended, MAX_MESSAGE_CHARACTERS)
    return "its run was ended in Temporal" if not run.ended_by_itself else "it has been started again"
