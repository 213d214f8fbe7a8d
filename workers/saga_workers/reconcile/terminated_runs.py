"""Sagas whose run, or bulk workflow, was closed from outside: continued where they stood.

That is backward before the commit point and forward after it.
"""

from __future__ import annotations

import asyncio
import time

from saga_workers.interventions import start_undo
from saga_workers.location.deleted_run import RUN_DELETED
from saga_workers.location.locator import Locator
from saga_workers.reconcile.left_claims import UNDO_TIMEOUT, continue_claimed, describe_continued
from saga_workers.temporal.temporal_runs import count_pollers, no_poller_message
from saga_workers.views.run_facts import close_reason
from saga_workers.views.saga_view import read_view
from sagas.errors import RefusedError
from sagas.protocol.saga_view import SagaView

_REASON = "the run was terminated with open effects"


async def continue_terminated(locator: Locator, saga_id: str, who: str, reason: str = "") -> str:
    """Continue the saga, and wait for its end, or for up to ``UNDO_TIMEOUT`` seconds. ``reason`` is recorded.

    Returns what was done, as a message for operators. Raises RefusedError if nothing can be done.
    """
    reason = reason or _REASON
    if (await locator.locate(saga_id)).member is not None:
        return await continue_claimed(locator, saga_id, who, reason)
    described = (await locator.within_temporal().locate(saga_id)).run
    if described is None:
        raise RefusedError(RUN_DELETED)
    run = described.run
    if not await count_pollers(locator.temporal, run.task_queue):
        raise RefusedError(no_poller_message(run.task_queue))
    try:
        closed = (await close_reason(locator.temporal, run)).message or ""
        await start_undo(
            locator.temporal, run.id, run.workflow_type, run.task_queue, reason=reason, who=who, closed=closed
        )
    except RefusedError:
        return "it is already being undone"
    return await describe_continued(locator, await _wait_for_undo(locator, saga_id), saga_id)


async def _wait_for_undo(locator: Locator, saga_id: str) -> SagaView:
    """The view when the undo has ended or parked, or after the timeout."""
    until = time.monotonic() + UNDO_TIMEOUT
    while True:
        location = await locator.within_temporal().locate(saga_id)
        view = await read_view(locator.within_temporal(), saga_id)
        if location.kind != "undoing" or view.waits_for_a_person or time.monotonic() > until:
            return view
        await asyncio.sleep(0.5)
