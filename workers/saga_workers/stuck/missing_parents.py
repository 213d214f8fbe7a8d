"""Finds the saga in which a nested one has completed, if it is gone: nobody then undoes or keeps what that has done.

A parent without steps of its own in a guard leaves no other trace than the effects of its nested sagas. Nobody has what
it was started with, so a run counts as its own if it was open when the nested saga began, or knows the nested saga, and
if the nested saga does not say that its root saga was started otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from saga_workers.location.location import Location
from saga_workers.location.locator import Locator
from saga_workers.location.verified_outcomes import outcome_of
from saga_workers.stuck.served_runs import is_open_for
from saga_workers.temporal.root_starts import root_start_of_run
from saga_workers.temporal.run_times import was_closed_before, was_started_by
from saga_workers.temporal.temporal_runs import RunInfo
from sagas.protocol.origin import Origin, same_owner
from sagas.protocol.saga_view import OVER


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
        is_same = same_owner(await root_start_of_run(locator.temporal, location.run), origin.root_start)
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
