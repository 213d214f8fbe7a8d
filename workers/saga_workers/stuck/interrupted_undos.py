"""Finds completed sagas whose undo has begun and will not be finished, because Temporal has no run of it any more.

The run of the saga itself is there and says COMPLETED. What tells of the undo are the rows of the guards, which have
undone what the run has done, and the ledger, where the undo was parked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from saga_workers.location.location import Location
from saga_workers.location.locator import Locator
from saga_workers.stuck.verdict import OpenSaga
from saga_workers.temporal.root_starts import nested_root_start
from saga_workers.temporal.saga_input import first_input
from saga_workers.views.saga_view import read_view
from sagas.protocol.payloads import input_digest
from sagas.protocol.saga_view import OVER, SagaView
from sagas.text.shortening import join_names

if TYPE_CHECKING:
    from saga_workers.location.traces import RecordedEffect

_DONE = ("DONE", "CONFIRMING", "CONFIRMED")


async def interrupted_undo(
    locator: Locator, location: Location, effects: Sequence[RecordedEffect], view: SagaView | None = None
) -> OpenSaga | None:
    """The saga at this location, if its undo has begun and nothing continues it. ``view``: the one that its run has
    left, if it was read. A nested saga is undone by its parent.

    Raises LedgerUnavailable, RPCError.
    """
    described = location.run
    if location.kind != "ended" or described is None or location.undo is not None or described.run.parent_id:
        return None
    view = view or await read_view(locator.within_temporal(), location.saga_id)
    if view.state != "COMPLETED" or view.is_unverified:
        return None
    undone = undone_entries(view, effects)
    if not undone and not await is_parked_undo(locator, location, view):
        return None
    holds = f"undone: {join_names(undone, 5)}" if undone else "not known what is undone"
    return OpenSaga(view.id, "undo deleted", view.saga, (holds,), view=_with_undone(view, undone))


def undone_entries(view: SagaView, effects: Sequence[RecordedEffect]) -> list[str]:
    """The entries that are done by the view of a completed saga, and undone by their latest row in the databases."""
    latest: dict[str, RecordedEffect] = {}
    for effect in effects:
        if effect.entry not in latest or latest[effect.entry].generation < effect.generation:
            latest[effect.entry] = effect
    done = {step.id: step.generation or 1 for step in view.steps if step.state in _DONE}
    return [
        entry
        for entry, generation in done.items()
        if entry in latest and latest[entry].generation >= generation and _is_undone(latest[entry])
    ]


def _is_undone(effect: RecordedEffect) -> bool:
    return not effect.open and not effect.confirmed and not effect.is_undoing


async def is_parked_undo(locator: Locator, location: Location, view: SagaView) -> bool:
    """True if the ledger has the parked undo of the saga that has completed by this view, and Temporal has no run of
    the undo. Raises LedgerUnavailable.
    """
    from saga_workers.location.commit_point import story_in_ledger

    described = location.run
    if view.state != "COMPLETED" or view.generation is None or described is None or location.undo is not None:
        return False
    root_start = await nested_root_start(described.run)
    parked = await story_in_ledger(locator.ledger, view.id, view.saga, view.generation, None, root_start)
    if parked is None or parked.phase != "backward" or parked.state in OVER:
        return False
    digest = input_digest(await first_input(locator.temporal, described, locator.keys))
    own = await story_in_ledger(locator.ledger, view.id, view.saga, view.generation, digest, root_start)
    return own is not None


def _with_undone(view: SagaView, undone: Sequence[str]) -> SagaView:
    """The view of the saga as its interrupted undo has left it."""
    steps = [
        replace(step, state="COMPENSATED", compensation=step.compensation and replace(step.compensation, state="DONE"))
        if step.id in undone
        else step
        for step in view.steps
    ]
    return replace(view, state="TERMINATED", phase="backward", steps=tuple(steps))
