"""The start of the oldest saga whose guard rows may still be needed, from Temporal's visibility and the ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

from saga_workers.location.locator import Locator
from saga_workers.location.verified_outcomes import outcome_of
from saga_workers.temporal.root_starts import root_start_of_run
from saga_workers.temporal.saga_runs import was_never_accepted, was_refused
from saga_workers.temporal.temporal_runs import ENDED_FROM_OUTSIDE, RunInfo, describe_run, list_runs
from saga_workers.temporal.visibility_filter import time_literal
from saga_workers.temporal.visible_states import carried_start, closed_view
from saga_workers.worker.earlier_starts import has_begun_before
from sagas.protocol.origin import same_owner
from sagas.protocol.payloads import UNDO_SUFFIX

_RPC_TIMEOUT = timedelta(seconds=30)
_FEW_RUNS = 200
"""Closed runs that are read; each is read with its memo."""


async def retention_horizon(locator: Locator, *, before: float) -> float | None:
    """The earliest start of a saga that is open, or whose run is closed and that can be undone; None if none is before
    ``before``.

    Times are seconds since the epoch. Every open workflow in the namespace counts, whatever its type: a horizon that is
    too low only keeps rows longer. A saga that a bulk workflow has claimed has not ended, also if that was deleted:
    without its rows it would be taken for one that has done nothing. Raises RPCError if Temporal does not answer,
    LedgerUnavailable if the ledger does not.
    """
    claimed = await locator.ledger.oldest_bulk_claim()
    running = await _earliest_start(locator, list_runs(locator.temporal, "ExecutionStatus = 'Running'"), before)
    undoable = await _earliest_undoable(locator, 0.0, before)
    in_bulk = None if claimed is None else claimed.timestamp()
    return min((began for began in (in_bulk, running, undoable) if began is not None and began < before), default=None)


async def _earliest_undoable(locator: Locator, since: float, until: float) -> float | None:
    """The earliest start in [since, until) of a saga that has completed, or was terminated, and can be undone.

    Lists come newest first and may be long, so this bisects by counts and reads the oldest intervals first.
    """
    query = f"(ExecutionStatus = 'Completed' OR {ENDED_FROM_OUTSIDE})"
    within = f"{query} AND StartTime >= {time_literal(since)} AND StartTime < {time_literal(until)}"
    count = (await locator.temporal.count_workflows(within, rpc_timeout=_RPC_TIMEOUT)).count
    if count == 0:
        return None
    if count <= _FEW_RUNS or until - since < 1.0:
        return await _earliest_start(locator, _undoable_runs(locator, within), before=until)
    middle = (since + until) / 2
    earlier = await _earliest_undoable(locator, since, middle)
    return earlier if earlier is not None else await _earliest_undoable(locator, middle, until)


async def _earliest_start(locator: Locator, runs: AsyncIterator[RunInfo], before: float) -> float | None:
    """The earliest start of the sagas of these runs; None if none is before ``before``. A continued run carries the
    start of the first one in its memo, which is verified in the order of the times: few have to be.
    """
    earliest: float | None = None
    starts: list[tuple[float, RunInfo]] = []
    async for run in runs:
        began, carried = run.start_time.timestamp(), await carried_start(run)
        if carried is not None and carried < before:
            starts.append((carried, run))
        if began < before and (earliest is None or began < earliest):
            earliest = began
    for carried, run in sorted(starts, key=lambda start: start[0]):
        if earliest is not None and carried >= earliest:
            break
        is_own = locator.settings is None or run.task_queue == locator.settings.temporal.task_queue
        if await has_begun_before(locator.temporal, run, carried, locator.keys if is_own else None):
            return carried
    return earliest


async def _undoable_runs(locator: Locator, query: str) -> AsyncIterator[RunInfo]:
    async for run in list_runs(locator.temporal, query):
        check = may_be_continued if run.ended_from_outside else _can_still_be_undone
        if await check(locator, run):
            yield run


async def may_be_continued(locator: Locator, run: RunInfo) -> bool:
    """True if the saga of a terminated run of this project may have effects that nothing has undone or completed
    since: neither its undo, nor a later run of the same saga.
    """
    is_own = locator.settings is not None and run.task_queue == locator.settings.temporal.task_queue
    if not is_own or run.id.endswith(UNDO_SUFFIX) or await was_never_accepted(locator.temporal, run):
        return False
    undo = await describe_run(locator.temporal, run.id + UNDO_SUFFIX)
    if undo is not None and undo.run.ended_by_itself and undo.run.start_time >= run.start_time:
        is_signed = (await outcome_of(locator, undo.run)).is_believed
        if is_signed and not was_refused(undo.run):
            return False
    last = await describe_run(locator.temporal, run.id)
    if last is None or last.run.run_id == run.run_id or not last.run.ended_by_itself:
        return True
    described = await describe_run(locator.temporal, run.id, run.run_id)
    if described is None or last.run.workflow_type != run.workflow_type:
        return described is not None
    starts = [await root_start_of_run(locator.temporal, each, locator.keys) for each in (described, last)]
    return not same_owner(*starts)


async def _can_still_be_undone(locator: Locator, run: RunInfo) -> bool:
    """Return whether the saga of a closed run may be undone.

    A run whose outcome is not signed, and not in the ledger either, may be a saga of this project that somebody else
    has closed: it keeps its rows. Runs without an outcome are not sagas. Those of another project have other keys.
    """
    view = await closed_view(run)
    if view is None:
        return False
    if locator.settings is None or run.task_queue != locator.settings.temporal.task_queue:
        return view.can_undo
    outcome = await outcome_of(locator, run)
    return outcome.view is None or outcome.view.can_undo
