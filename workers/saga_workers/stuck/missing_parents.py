"""Finds the saga in which a nested one has completed, if it is gone: nobody then undoes or keeps what that has done.

A parent without steps of its own in a guard leaves no other trace than the effects of its nested sagas. Nobody has what
it was started with, so a run counts as its own if it was open when the nested saga began, or knows the nested saga, and
if the nested saga does not say that its root saga was started otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from saga_workers.location.location import Location
from saga_workers.location.locator import Locator
from saga_workers.location.served_runs import is_open_for
from saga_workers.location.verified_outcomes import outcome_of
from saga_workers.temporal.root_starts import root_start_of_run
from saga_workers.temporal.run_times import was_closed_before, was_started_by
from saga_workers.temporal.temporal_runs import RunInfo
from sagas.protocol.locks import owner_id
from sagas.protocol.origin import Origin, same_owner, start_of
from sagas.protocol.saga_view import OVER
from sagas.settings import Settings


@dataclass(frozen=True, slots=True)
class MissingParent:
    """A saga, directly or not the parent of a nested one, that has no run and has not ended. ``holder``: the run of
    another workflow that has its id; None if Temporal knows none.
    """

    saga_id: str
    holder: RunInfo | None = None


async def find_missing_parent(locator: Locator, saga_id: str, origin: Origin) -> MissingParent | None:
    """The missing parent of the nested saga with this origin; None if its parents are there, or have ended. Raises
    LedgerUnavailable, RPCError.
    """
    child, parent, began = saga_id, origin.parent, origin.started_at
    while parent is not None:
        location = await locator.locate(parent)
        if location.run is None or location.run.never_accepted:
            return None if _is_known(location, origin) else MissingParent(parent)
        run = location.run.run
        is_same = same_owner(await root_start_of_run(locator.temporal, location.run, locator.keys), origin.root_start)
        if not is_same or not await _has_child(locator, run, child, began):
            return MissingParent(parent, run)
        if not run.ended_by_itself or (await outcome_of(locator, run)).state != "COMPLETED":
            return None
        child, parent, began = parent, run.parent_id, run.start_time.timestamp()
    return None


def _is_known(location: Location, origin: Origin) -> bool:
    """True if a saga without a run of its own has ended, or will end: that with the root saga of this ``origin``."""
    row = location.row
    if row is not None and row.view.state in OVER and same_owner(row.start_of_root, origin.root_start):
        return True
    if location.member is not None and location.member.bulk is not None:
        return True
    return location.undo is not None and not location.undo.run.ended_from_outside


async def _has_child(locator: Locator, run: RunInfo, child: str, began: float) -> bool:
    """True if the run started the nested saga, which ``began`` then, or takes over what an earlier run has started."""
    if was_closed_before(run, began):
        return False
    if run.running:
        return await is_open_for(locator, run, began)
    if was_started_by(run, began) or run.ended_from_outside:
        return True
    view = (await outcome_of(locator, run)).view
    return view is not None and child in {nested.id for nested in view.children}


async def missing_starts(locator: Locator, settings: Settings, location: Location) -> dict[str, float]:
    """The :func:`sagas.protocol.origin.start_of` each root saga of this id of which nothing is left but the open
    effects of sagas that are nested in it, with the time at which the first of these began. Not that of the run, or the
    row, that has the id now. Empty for a nested saga, which its parent starts again. Raises SagaError, RPCError.
    """
    from saga_workers.location.traces import effects_of_sagas, nested_sagas

    starts: dict[str, float] = {}
    if owner_id(location.saga_id) != location.saga_id:
        return starts
    for effects in (await effects_of_sagas(settings, await nested_sagas(settings, location.saga_id))).values():
        for effect in effects:
            if effect.origin is not None and effect.origin.root_start and (effect.open or effect.undo_elsewhere):
                began = min(effect.origin.started_at, starts.get(effect.origin.root_start, effect.origin.started_at))
                starts[effect.origin.root_start] = began
    present = await _present_start(locator, location) if starts else None
    return {start: began for start, began in starts.items() if present is None or not same_owner(start, present)}


async def _present_start(locator: Locator, location: Location) -> str | None:
    """The start of the saga that has the id now, empty if it is not known; None without one."""
    if location.run is not None:
        return (
            None
            if location.run.never_accepted
            else await root_start_of_run(locator.temporal, location.run, locator.keys)
        )
    if location.member is not None:
        return start_of(location.member.claim.saga, location.member.claim.input_digest)
    return None if location.row is None else location.row.start_of_root
