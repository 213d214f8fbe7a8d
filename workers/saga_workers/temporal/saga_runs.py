"""Finds the run of a saga among the runs of its id: any client can start another one, which is then refused."""

from __future__ import annotations

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus

from saga_workers.temporal.claimed_states import visible_state
from saga_workers.temporal.temporal_runs import RunDescription, RunInfo, describe_run, list_runs
from saga_workers.temporal.visibility_filter import keyword_condition
from sagas.protocol.payloads import OUTCOME_MEMO


def was_refused(run: RunInfo) -> bool:
    """True if a run has failed without the view that every saga leaves at its end: it has never become one."""
    return run.ended_by_itself and visible_state(run) == "FAILED" and OUTCOME_MEMO not in run.raw.memo.fields


async def describe_saga_run(temporal: Temporal, id: str) -> RunDescription | None:
    """The newest run of an id that was not refused; if all were, the newest one. None if Temporal knows none.

    A refused run changes nothing, so the run before it tells how the saga has ended.
    """
    newest = await describe_run(temporal, id)
    if newest is None or not was_refused(newest.run):
        return newest
    async for run in list_runs(temporal, keyword_condition("WorkflowId", id)):
        if run.id != id or was_refused(run) or run.status is WorkflowExecutionStatus.CONTINUED_AS_NEW:
            continue
        described = await describe_run(temporal, id, run.run_id)
        if described is not None and not was_refused(described.run):  # the visibility store lags behind
            return described
    return newest
