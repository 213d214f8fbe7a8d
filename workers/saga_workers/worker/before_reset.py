"""Looks up what a saga had done before Temporal's reset made a new run from one of its runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from temporalio import activity

from saga_workers.location.believed_outcomes import closed_state
from saga_workers.location.locator import Locator
from saga_workers.location.traces import guarded_effects, highest_generations
from saga_workers.temporal.run_states import visible_state
from saga_workers.temporal.temporal_runs import RunInfo, describe_run, list_runs
from saga_workers.temporal.visibility_filter import keyword_condition
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.settings import Settings

_NOT_BACKWARD = ("FAILED", "COMMITTED", "COMPLETED")
"""The states of a run that was refused, or has gone forward because the saga was past its commit point."""


async def look_before_reset(
    settings: Settings, locator: Locator, saga_id: str, pivot: str | None, since: float
) -> dict[str, Any]:
    """Return what the saga had done. ``undone``: it was compensated, or is being compensated, by a run of its own or by
    that of its undo; ``generations``: the highest of each entry in the guards, where it is not the first;
    ``pivot_done``: the effect of the pivot is in place.

    Raises SagaError for a guard that cannot be read.
    """
    effects = await guarded_effects(settings, saga_id)
    return {
        "undone": await _was_undone(locator, datetime.fromtimestamp(float(since), UTC)),
        "generations": highest_generations(effects),
        "pivot_done": any(effect.open and effect.entry == pivot for effect in effects),
    }


async def _was_undone(locator: Locator, started: datetime) -> bool:
    async for run in _other_ends(locator, started):
        state = visible_state(run) if run.running else await closed_state(locator, run)
        if state not in _NOT_BACKWARD:
            return True
    return False


async def _other_ends(locator: Locator, started: datetime) -> AsyncIterator[RunInfo]:
    """The runs since the start of the current activity's saga that may have undone it: its undo, and those of its id
    that have closed as Failed or Canceled. A reset terminates a run that is open; earlier generations ended before.
    """
    info = activity.info()
    workflow_id, workflow_type = info.workflow_id or "", info.workflow_type or ""
    if not workflow_id.endswith(UNDO_SUFFIX):
        undo = await describe_run(locator.temporal, workflow_id + UNDO_SUFFIX)
        if undo is not None and undo.run.workflow_type == workflow_type and undo.run.start_time >= started:
            yield undo.run
    conditions = (
        keyword_condition("WorkflowId", workflow_id),
        keyword_condition("WorkflowType", workflow_type),
        f"CloseTime >= '{started.isoformat()}'",
        "ExecutionStatus IN ('Failed', 'Canceled')",
    )
    async for run in list_runs(locator.temporal, " AND ".join(conditions)):
        if (run.id, run.workflow_type) == (workflow_id, workflow_type):
            yield run
