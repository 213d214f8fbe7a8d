"""Looks up what a saga had done before Temporal's reset made a new run from one of its runs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.location.done_commands import done_commands
from saga_workers.location.locator import Locator
from saga_workers.location.traces import guarded_effects, highest_generations, last_items
from saga_workers.location.verified_outcomes import state_of
from saga_workers.temporal.machine_query import query_machine
from saga_workers.temporal.saga_runs import describe_saga_run
from saga_workers.temporal.temporal_runs import RunInfo, list_runs
from saga_workers.temporal.visibility_filter import keyword_condition
from saga_workers.worker.nested_traces import nested_traces
from sagas.errors import RefusedError, SagaError
from sagas.machine.left_steps import LeftState
from sagas.protocol.payloads import UNDO_SUFFIX, pack_state, unpack_state
from sagas.settings import Settings

log = logging.getLogger("saga.reset")

_MAX_RESETS = 10
"""Runs that were reset one after the other, whose states are read."""

_QUERY_TIMEOUT = timedelta(seconds=8)

_NOT_BACKWARD = ("FAILED", "COMMITTED", "COMPLETED")
"""The states of a run that was refused, or has gone forward because the saga was past its commit point."""


async def look_before_reset(settings: Settings, locator: Locator, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the saga had done. ``about``: see :data:`saga_activities.temporal.saga_activities.LookBeforeReset`.

    ``undone``: it was compensated, or is being compensated, by a run of its own or by that of its undo;
    ``generations``: the highest of each entry, where it is not the first, and those of the last item of each `for_each`
    and of each nested saga that has left traces; ``pivot_done``: it is past its commit point, and the effects are in
    place; ``left``: the steps and nested sagas of the runs before, packed; ``state_is_lost``: there was one whose state
    nobody has; ``started_at``: when the saga was started, if a guard knows.

    Raises SagaError for a guard that cannot be read, and for a run that does not answer.
    """
    saga_id = about["saga_id"]
    effects = await guarded_effects(settings, saga_id)
    packed = [state async for state in _states_before(locator)]
    states = [LeftState.of(unpack_state(state)) for state in packed if state is not None]
    undone_elsewhere = await _was_undone(locator, datetime.fromtimestamp(float(about["since"]), UTC))
    undone = undone_elsewhere or any(state.goes_backward for state in states)
    generations = highest_generations(effects)
    left: dict[str, dict[str, Any]] = {"records": {}, "children": {}}
    for state in states:  # the last run first: what it has begun is as it has left it
        for name, of_state in (("records", state.records), ("children", state.children)):
            left[name] = {**of_state, **left[name]}
        for id, generation in state.generations.items():
            generations[id] = max(generation, generations.get(id, 1))
    nested = [
        trace
        for step in about["nested"]
        async for trace in nested_traces(settings, locator, saga_id, step, int(about["generation"]))
    ]
    for id in last_items(effects):
        generations.setdefault(id, 1)
    for trace in nested:
        generations[trace.entry] = max(trace.generation, generations.get(trace.entry, 1))
        if trace.child is not None:
            left["children"].setdefault(trace.entry, trace.child)
    done = [effect.entry for effect in effects if effect.open]
    done += [command.step for command in await done_commands(settings, [saga_id])]
    done += [trace.entry for trace in nested if trace.state == "COMPLETED"]
    is_decided = any(entry.partition("#")[0] in about["decisive"] for entry in done)
    is_committed = any(effect.confirmed for effect in effects) or any(state.committed for state in states)
    origins = [effect.origin.started_at for effect in effects if effect.origin is not None]
    return {
        "started_at": min(origins, default=None),
        "undone": undone,
        "generations": generations,
        "pivot_done": is_decided or (is_committed and not undone),
        "state_is_lost": None in packed and not undone_elsewhere,
        # What another run has undone, or is undoing, is not undone by this one.
        "left": pack_state({"records": {}, "children": {}} if undone_elsewhere else left),
    }


async def _states_before(locator: Locator) -> AsyncIterator[str | None]:
    """The states of the machines of the runs before the resets, the last run first; None for one that nobody has.

    Raises SagaError.
    """
    info = activity.info()
    workflow_id, run_id = info.workflow_id or "", info.workflow_run_id
    for _ in range(_MAX_RESETS):
        run_id = run_id and await _run_before(locator, workflow_id, run_id)
        if run_id is None:
            return
        try:
            state = await query_machine(locator.temporal, (workflow_id, run_id), locator.keys, timeout=_QUERY_TIMEOUT)
        except (WorkflowQueryFailedError, WorkflowQueryRejectedError, RefusedError) as error:
            log.warning("what the run %s of %s has done is not known: %s", run_id, workflow_id, error)
            yield None
            continue
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                yield None
                return
            raise SagaError(f"the run {run_id} of {workflow_id}, which was reset, does not answer: {error}") from error
        if state is not None:
            yield state


async def _run_before(locator: Locator, workflow_id: str, run_id: str) -> str | None:
    """The run from which the last reset has made this one; None: no run was reset, or it is deleted."""
    before = None
    try:
        async for event in locator.temporal.get_workflow_handle(workflow_id, run_id=run_id).fetch_history_events():
            if event.HasField("workflow_task_failed_event_attributes"):
                before = event.workflow_task_failed_event_attributes.base_run_id or before
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise SagaError(f"the history of {workflow_id} cannot be read: {error}") from error
    return before


async def _was_undone(locator: Locator, started: datetime) -> bool:
    async for run in _other_ends(locator, started):
        if await state_of(locator, run) not in _NOT_BACKWARD:
            return True
    return False


async def _other_ends(locator: Locator, started: datetime) -> AsyncIterator[RunInfo]:
    """The runs since the start of the current activity's saga that may have undone it: its undo, and those of its id
    that have closed as Failed or Canceled. A reset terminates a run that is open; earlier generations ended before.
    """
    info = activity.info()
    workflow_id, workflow_type = info.workflow_id or "", info.workflow_type or ""
    if not workflow_id.endswith(UNDO_SUFFIX):
        undo = await describe_saga_run(locator.temporal, workflow_id + UNDO_SUFFIX)
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
