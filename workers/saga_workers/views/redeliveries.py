"""The next start of a compensated saga for its event: how its run stands, and its end by an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.temporal.foreign_payloads import UNREADABLE_PAYLOAD
from saga_workers.temporal.temporal_runs import RunInfo, count_pollers, describe_run
from sagas.protocol.payloads import second_workflow_id
from sagas.protocol.redelivery_names import REDELIVERY_MEMO, REDELIVERY_WORKFLOW
from sagas.protocol.saga_view import SagaView
from sagas.protocol.size_limits import MAX_MESSAGE_CHARACTERS
from sagas.text.shortening import shorten_middle


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
        shown = replace(due, run=run.id, ended=await _end(run))
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


async def _find(temporal: Temporal, saga_id: str, workflow_id: str) -> RunInfo | None:
    """The run that the saga has started for it: Temporal itself writes the parent of a run."""
    for id in (workflow_id, second_workflow_id(workflow_id)):
        described = await describe_run(temporal, id)
        if described is None:
            return None
        if described.run.workflow_type == REDELIVERY_WORKFLOW and described.run.parent_id == saga_id:
            return described.run
    return None


async def _end(run: RunInfo) -> str | None:
    """Why the run starts nothing any more; None while it is going to."""
    if run.running:
        return None
    memo: Any = (await run.memo()).get(REDELIVERY_MEMO)
    ended = memo.get("ended") if isinstance(memo, Mapping) else None
    if isinstance(ended, str) and ended:
        return shorten_middle(ended, MAX_MESSAGE_CHARACTERS)
    return "its run was ended in Temporal" if not run.ended_by_itself else "it has been started again"
