"""The steps of a saga that had been undone before its run was reset: the run that has undone them knows their story,
and the one that the reset has made has not come to them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from saga_workers.location.locator import Locator
from saga_workers.location.verified_outcomes import outcome_of
from saga_workers.temporal.temporal_runs import RunInfo, list_runs
from saga_workers.temporal.visibility_filter import keyword_condition
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import SagaView, StepView

_MAX_RUNS = 20
"""Closed runs that are read, the newest first."""


async def with_undone_steps(locator: Locator, run: RunInfo, view: SagaView) -> SagaView:
    """The ``view`` of the ``run`` with the steps to which it has not come as the runs left them that had undone the
    saga before; unchanged if it was not reset, and as far as Temporal does not have those runs any more.

    Raises RPCError.
    """
    if view.phase != "backward" or run.raw.first_run_id in ("", run.run_id):
        return view
    steps = view.steps
    if any(_is_unreached(step) for step in steps):
        async for earlier in _closed_before(locator, run):
            outcome = await outcome_of(locator, earlier)
            if outcome.is_believed and outcome.view is not None and _is_of_same_start(outcome.view, view):
                steps = _joined(outcome.view.steps, steps)
    return replace(view, steps=steps)


async def _closed_before(locator: Locator, run: RunInfo) -> AsyncIterator[RunInfo]:
    """The runs of the saga, and of its undo, that have left an end."""
    saga_id = run.id.removesuffix(UNDO_SUFFIX)
    ids = [keyword_condition("WorkflowId", id) for id in (saga_id, saga_id + UNDO_SUFFIX)]
    condition = f"({' OR '.join(ids)}) AND {keyword_condition('WorkflowType', run.workflow_type)}"
    read = 0
    async for each in list_runs(locator.temporal, condition):
        if each.ended_by_itself and each.run_id != run.run_id and read < _MAX_RUNS:
            read += 1
            yield each


def _is_of_same_start(told: SagaView, view: SagaView) -> bool:
    is_undone = told.state in ("COMPENSATED", "RESIDUE")
    return is_undone and (told.generation, told.started_at) == (view.generation, view.started_at)


def _joined(told: tuple[StepView, ...], own: tuple[StepView, ...]) -> tuple[StepView, ...]:
    reached = {step.id: step for step in own if not _is_unreached(step)}
    told_ids = {step.id for step in told}
    joined = [reached.get(step.id, step) for step in told]
    return (*joined, *(step for id, step in reached.items() if id not in told_ids))


def _is_unreached(step: StepView) -> bool:
    return step.state == "PENDING"
