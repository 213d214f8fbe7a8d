"""Finds the open effects of a saga that none of its runs will end, or has ended.

The id alone tells nothing about that. Any client may start another workflow under it, and if the newest run was
deleted, those that Temporal still lists may be older than the effects. A run is one of the saga that made an effect
only if it has the name of that saga, and was open when that saga began, or began later with the same input; and one of
a nested saga only if the root saga is the same one. A run that was refused is none, and a start time in the memo of a
run counts only if a worker has written it. The effects of a nested saga that has completed are also those of its
parent, which undoes them if it goes backward.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from temporalio.api.enums.v1 import ContinueAsNewInitiator
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus

from saga_workers.location.accepted_undos import is_accepted_undo, may_undo
from saga_workers.location.known_ends import knows_end
from saga_workers.location.location import Location
from saga_workers.location.locator import Locator
from saga_workers.location.served_runs import is_on_own_queue, is_open_for, is_served
from saga_workers.location.verified_outcomes import outcome_of
from saga_workers.stuck.missing_parents import find_missing_parent
from saga_workers.temporal.root_starts import nested_root_start
from saga_workers.temporal.run_history import start_of_run
from saga_workers.temporal.run_times import PRECISION, was_closed_before, was_started_by
from saga_workers.temporal.saga_input import ForeignInput, first_input
from saga_workers.temporal.saga_runs import describe_saga_run, was_accepted, was_never_accepted
from saga_workers.temporal.temporal_runs import RunInfo, describe_run, list_runs, namespace_retention
from saga_workers.temporal.visibility_filter import keyword_condition
from saga_workers.temporal.visible_states import carried_start
from sagas.definition.saga_ids import workflow_id_problem
from sagas.protocol.doubtful_outcomes import UNVERIFIED
from sagas.protocol.origin import Origin, same_owner, same_start
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import OVER

if TYPE_CHECKING:
    from saga_workers.location.traces import RecordedEffect


@dataclass(frozen=True, slots=True)
class _RecordedOrigin:
    """The origin of the saga of an effect, and when the guard has recorded it."""

    origin: Origin
    recorded_at: float


async def lost_effects(locator: Locator, location: Location, effects: Sequence[RecordedEffect]) -> list[RecordedEffect]:
    """The open ones of the effects of a saga that no run of it will end or has ended, the oldest first.

    The effects of a terminated run are not among them, as long as its id and that of its undo lead to it: it can be
    continued. Raises
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


async def has_ended_before(locator: Locator, saga_id: str, origin: Origin) -> bool:
    """True if the saga with this origin has ended by itself, whatever run has its id now. Raises LedgerUnavailable,
    RPCError.
    """
    nowhere = Location(saga_id, None)
    return await _is_accounted_for(locator, nowhere, _RecordedOrigin(origin, origin.started_at))


async def may_have_ended(locator: Locator, location: Location, effects: Sequence[RecordedEffect]) -> bool:
    """True if nobody knows whether the saga with these effects has ended: Temporal has no run of it, and no ledger
    would have its end. Raises LedgerUnavailable, RPCError.
    """
    from saga_workers.location.traces import open_origin, without_others

    if not await has_no_run(locator, location, effects):
        return False
    origin = open_origin(effects)
    own = effects if origin is None else without_others(effects, origin.saga, origin.input_digest, origin.root_start)
    newest = max((effect.created_at for effect in own), default=0.0)
    return not await knows_end(locator.ledger, own) or await _is_forgotten(locator.temporal, newest)


async def has_no_run(locator: Locator, location: Location, effects: Sequence[RecordedEffect]) -> bool:
    """True if Temporal has no run that tells whether the saga with these effects has ended. One that was closed from
    outside tells it only if the newest run of the id is there: one that followed by a reset may be deleted.
    """
    from saga_workers.location.traces import open_origin

    described, origin = location.run, open_origin(effects)
    is_gone = described is None or described.never_accepted
    if origin is None:
        return is_gone
    async for run in _runs_of(locator.temporal, location):
        if run.running or not await _is_of(locator, run, origin):
            continue
        if run.ended_from_outside:
            return is_gone
        outcome = await outcome_of(locator, run)
        if outcome.doubt != UNVERIFIED or outcome.row is not None:
            return False
    return True


def was_open_at_start(run: RunInfo, origin: Origin) -> bool:
    """True if the run is of this saga, and was open when the saga began."""
    at = origin.started_at
    return run.workflow_type == origin.saga and was_started_by(run, at) and not was_closed_before(run, at)


async def _is_accounted_for(locator: Locator, location: Location, start: _RecordedOrigin) -> bool:
    """True if a run of the saga that was started so will end it, has ended it, or can be continued."""
    origin = start.origin
    if await _is_undone_by_run(locator, location, origin):
        return True
    async for run in _runs_of(locator.temporal, location):
        if not await _is_of(locator, run, origin):
            continue
        is_newest = location.run is not None and location.run.run.run_id == run.run_id
        if run.running:
            if not is_newest:
                continue  # it was deleted, and the visibility store lags
            return await is_open_for(locator, run, origin.started_at)
        if run.ended_from_outside:
            return is_newest and location.open_run is None
        outcome = await outcome_of(locator, run)
        if outcome.doubt == UNVERIFIED and not await _has_ended(locator, location, origin):
            continue
        if outcome.state != "COMPLETED" or origin.parent is None:
            return True
        return await find_missing_parent(locator, location.saga_id, origin) is None
    if await _has_ended(locator, location, origin):
        return True
    return location.kind != "unknown" and await _is_forgotten(locator.temporal, start.recorded_at)


async def _runs_of(temporal: Temporal, location: Location) -> AsyncIterator[RunInfo]:
    """The runs of the id that have become sagas, the newest first; without those that were continued as new."""
    newest = location.run
    if newest is not None and not newest.never_accepted:
        yield newest.run
    async for run in list_runs(temporal, keyword_condition("WorkflowId", location.saga_id)):
        is_other = newest is None or run.run_id != newest.run.run_id
        if run.id != location.saga_id or not is_other or run.status is WorkflowExecutionStatus.CONTINUED_AS_NEW:
            continue
        if not await was_never_accepted(temporal, run):
            yield run


async def _is_of(locator: Locator, run: RunInfo, origin: Origin) -> bool:
    if not same_owner(await nested_root_start(run), origin.root_start):
        return False
    if was_open_at_start(run, origin):
        return True
    if run.workflow_type != origin.saga or was_closed_before(run, origin.started_at):
        return False
    described = await describe_run(locator.temporal, run.id, run.run_id)
    if described is None:
        return False
    # Without a digest the values of the saga are forgotten, and with them those of its runs.
    if not origin.input_digest:
        return True
    try:
        if same_start(origin, run.workflow_type, await first_input(locator.temporal, described, locator.keys)):
            return True
    except ForeignInput:
        return False
    return await _continues(locator.temporal, run, origin)


async def _continues(temporal: Temporal, run: RunInfo, origin: Origin) -> bool:
    """True if the run before it, which was open when the saga began, has continued itself as this one.

    The first run of a long chain, and with it the input, may be deleted. Any client may start a run with any memo.
    """
    began = await carried_start(run)
    if began is None or began - PRECISION > origin.started_at:
        return False
    started = await start_of_run(temporal, run.id, run.run_id)
    by_workflow = ContinueAsNewInitiator.CONTINUE_AS_NEW_INITIATOR_WORKFLOW
    return started is not None and started.initiator == by_workflow


async def _is_undone_by_run(locator: Locator, location: Location, origin: Origin) -> bool:
    """True if a run that undoes or continues the saga is open, or has ended by itself: not one that anybody has started
    on another task queue, where no worker has accepted it, or for a later time, or whose tasks he takes.
    """
    undo = await describe_saga_run(locator.temporal, location.saga_id + UNDO_SUFFIX)
    if undo is None or undo.never_accepted or undo.run.workflow_type != origin.saga:
        return False
    run = undo.run
    if not same_owner(await nested_root_start(run), origin.root_start):
        return False
    if run.start_time.timestamp() < origin.started_at or run.ended_from_outside:
        return False
    if not run.running:
        is_doubtful = (await outcome_of(locator, run)).doubt == UNVERIFIED
        return not is_doubtful or await _has_ended(locator, location, origin)
    if is_on_own_queue(locator, run):
        return await may_undo(locator.temporal, run, locator.keys)
    if location.run is not None and location.run.run.task_queue != run.task_queue:
        return await is_accepted_undo(locator.temporal, run, locator.keys)
    return await is_served(locator, run) and await was_accepted(locator.temporal, run)


async def _has_ended(locator: Locator, location: Location, origin: Origin) -> bool:
    """True if the ledger has the end of this generation of the saga, or a later one. Another saga that has had the id
    since may have a row as well.
    """
    if workflow_id_problem(location.saga_id) is not None:
        return False  # no row has such an id, and a database may not even read it
    if location.undo is not None and location.undo.run.ended_from_outside:
        return False  # its end was to be undone
    row = location.row or await locator.ledger.find(location.saga_id)
    if row is None:
        return False
    is_own_root = same_owner(row.root_start, origin.root_start)
    if is_own_root and row.view.saga == origin.saga and (row.view.generation or 1) > origin.generation:
        return True
    story = await locator.ledger.find_story(
        location.saga_id,
        saga=origin.saga,
        generation=origin.generation,
        input_digest=origin.whole_digest,
        root_start=origin.root_start,
    )
    # An earlier saga with the same input has an earlier start.
    is_its_own = story is not None and story.started_at.timestamp() + PRECISION >= origin.started_at
    return story is not None and is_its_own and story.view.state in OVER


async def _is_forgotten(temporal: Temporal, recorded_at: float) -> bool:
    """True if Temporal would have deleted the run of the saga, had it ended when it recorded this effect."""
    return time.time() - recorded_at > await namespace_retention(temporal)
