"""Finds the open effects of a saga that none of its runs will end, or has ended.

The id alone tells nothing about that. Any client may start another workflow under it, and if the newest run was
deleted, those that Temporal still lists may be older than the effects. A run is one of the saga that made an effect
only if it has the name of that saga, and was open when that saga began, or began later with the same input.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus

from saga_workers.location.location import Location
from saga_workers.location.locator import Locator
from saga_workers.location.verified_outcomes import outcome_of
from saga_workers.temporal.claimed_states import carried_start
from saga_workers.temporal.saga_input import first_input
from saga_workers.temporal.saga_runs import describe_saga_run, was_never_accepted
from saga_workers.temporal.temporal_runs import RunInfo, count_pollers, describe_run, list_runs, namespace_retention
from saga_workers.temporal.visibility_filter import keyword_condition
from sagas.definition.saga_ids import workflow_id_problem
from sagas.protocol.doubtful_outcomes import UNVERIFIED
from sagas.protocol.origin import Origin, same_start
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import FINAL_STATES

if TYPE_CHECKING:
    from saga_workers.location.traces import RecordedEffect

OVER = tuple(state for state in FINAL_STATES if state != "TERMINATED")
"""The states of a saga that has ended by itself."""

_PRECISION = 0.001
"""Seconds; Temporal's times have more digits than those of a saga."""


@dataclass(frozen=True, slots=True)
class _RecordedOrigin:
    """The origin of the saga of an effect, and when the guard has recorded it."""

    origin: Origin
    recorded_at: float


async def lost_effects(locator: Locator, location: Location, effects: Sequence[RecordedEffect]) -> list[RecordedEffect]:
    """The open ones of the effects of a saga that no run of it will end or has ended, the oldest first.

    The effects of a terminated run are not among them, as long as the id leads to it: it can be continued. Raises
    LedgerUnavailable, RPCError.
    """
    if location.kind == "in bulk" or (location.member is not None and location.member.bulk is not None):
        return []
    lost: list[RecordedEffect] = []
    decided: dict[tuple[str, str, float, int], bool] = {}
    start: _RecordedOrigin | None = None
    for effect in effects:
        if effect.origin is not None:
            start = _RecordedOrigin(effect.origin, effect.created_at)
        if not (effect.open or effect.undo_elsewhere):
            continue
        if start is None:
            if location.kind == "unknown":
                lost.append(effect)
            continue
        origin = start.origin
        key = (origin.saga, origin.input_digest, origin.started_at, origin.generation)
        if key not in decided:
            decided[key] = await _is_accounted_for(locator, location, start)
        if not decided[key]:
            lost.append(effect)
    return lost


async def made_by(run: RunInfo, origin: Origin) -> bool:
    """True if the run is of this saga, and was open when the saga began."""
    if run.workflow_type != origin.saga:
        return False
    began = await carried_start(run)
    since = run.start_time.timestamp() if began is None else began
    return since - _PRECISION <= origin.started_at and not _closed_before(run, origin)


async def _is_accounted_for(locator: Locator, location: Location, start: _RecordedOrigin) -> bool:
    """True if a run of the saga that was started so will end it, has ended it, or can be continued."""
    origin = start.origin
    if await _is_undone_by_run(locator, location.saga_id, origin):
        return True
    async for run in _runs_of(locator.temporal, location):
        if not await _is_of(locator.temporal, run, origin):
            continue
        is_newest = location.run is not None and location.run.run.run_id == run.run_id
        if run.running:
            if not is_newest:
                continue  # it was deleted, and the visibility store lags
            return await _is_served(locator, run)
        if run.ended_from_outside:
            if is_newest:
                return True
            if await was_never_accepted(locator.temporal, run):
                continue
            return False
        if (await outcome_of(locator, run)).doubt == UNVERIFIED and not await _has_ended(locator, location, origin):
            continue
        return True
    if await _has_ended(locator, location, origin):
        return True
    return location.kind != "unknown" and await _is_forgotten(locator.temporal, start)


async def _runs_of(temporal: Temporal, location: Location) -> AsyncIterator[RunInfo]:
    """The runs of the id, the newest first; without those that were continued as new."""
    newest = location.run
    if newest is not None and not newest.never_accepted:
        yield newest.run
    async for run in list_runs(temporal, keyword_condition("WorkflowId", location.saga_id)):
        is_other = newest is None or run.run_id != newest.run.run_id
        if run.id == location.saga_id and is_other and run.status is not WorkflowExecutionStatus.CONTINUED_AS_NEW:
            yield run


async def _is_of(temporal: Temporal, run: RunInfo, origin: Origin) -> bool:
    if await made_by(run, origin):
        return True
    if run.workflow_type != origin.saga or _closed_before(run, origin):
        return False
    described = await describe_run(temporal, run.id, run.run_id)
    if described is None:
        return False
    # Without a digest the values of the saga are forgotten, and with them those of its runs.
    return not origin.input_digest or same_start(origin, run.workflow_type, await first_input(temporal, described))


def _closed_before(run: RunInfo, origin: Origin) -> bool:
    return run.close_time is not None and run.close_time.timestamp() + _PRECISION < origin.started_at


async def _is_served(locator: Locator, run: RunInfo) -> bool:
    """False for an open run on a task queue that is not the project's, and that no worker polls."""
    if locator.settings is None or run.task_queue == locator.settings.temporal.task_queue:
        return True
    return await count_pollers(locator.temporal, run.task_queue) > 0


async def _is_undone_by_run(locator: Locator, saga_id: str, origin: Origin) -> bool:
    """True if a run that undoes or continues the saga is open, or has ended by itself."""
    undo = await describe_saga_run(locator.temporal, saga_id + UNDO_SUFFIX)
    if undo is None or undo.never_accepted or undo.run.workflow_type != origin.saga:
        return False
    return undo.run.start_time.timestamp() >= origin.started_at and not undo.run.ended_from_outside


async def _has_ended(locator: Locator, location: Location, origin: Origin) -> bool:
    """True if the ledger has the end of this generation of the saga, or a later one."""
    if workflow_id_problem(location.saga_id) is not None:
        return False  # no row has such an id, and a database may not even read it
    row = location.row or await locator.ledger.find(location.saga_id)
    if row is None or row.view.saga != origin.saga:
        return False
    if location.undo is not None and location.undo.run.ended_from_outside:
        return False  # its end was to be undone
    generation = row.view.generation or 1
    return generation > origin.generation or (generation == origin.generation and row.view.state in OVER)


async def _is_forgotten(temporal: Temporal, start: _RecordedOrigin) -> bool:
    """True if Temporal would have deleted the run of the saga, had it ended when it recorded this effect."""
    return time.time() - start.recorded_at > await namespace_retention(temporal)
