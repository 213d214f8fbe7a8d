"""The view of one saga, with the reasons why it will not finish by itself. Nothing here brings SQLAlchemy by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from saga_activities.guard.entry_key import fits_guard_key
from saga_workers.location.location import Location
from saga_workers.location.locator import Locator
from saga_workers.stuck.interrupted_undos import interrupted_undo
from saga_workers.stuck.run_reasons import temporal_reasons
from saga_workers.stuck.verdict import OpenSaga, left_saga, lost_saga, replaced_saga, terminated_saga, verdict_of
from saga_workers.temporal.temporal_runs import RunDescription
from saga_workers.views.answering import Workers
from saga_workers.views.given_up import given_up_reasons
from saga_workers.views.parked_holders import ParkedHolders, wait_messages
from saga_workers.views.paused_children import PausedChildren
from saga_workers.views.reported_reasons import reported_reasons
from saga_workers.views.saga_view import read_view
from sagas.builtins.messaging import REQUEST
from sagas.errors import SagaError
from sagas.protocol.outcomes import OTHER_ARGUMENTS
from sagas.protocol.saga_view import FINAL_STATES, STARTED_AGAIN, SagaView

if TYPE_CHECKING:
    from saga_workers.location.traces import RecordedEffect

EFFECTS_TIMEOUT = 5.0
"""Seconds in which the databases have to tell whether an undo has begun of which Temporal has no run."""

_WAITING = ("RUNNING", "UNKNOWN", "PARKED")


async def read_view_with_stuck(locator: Locator, saga_id: str, *, web_ui: str | None = None) -> SagaView:
    """The view, with the field ``stuck`` if the saga will not finish by itself."""
    workers = Workers(locator.temporal, locator.keys)
    view = await read_view(locator, saga_id, web_ui=web_ui, workers=workers)
    if view.state == "COMPLETED" and view.can_undo:  # otherwise nobody can have begun to undo it
        try:
            async with asyncio.timeout(EFFECTS_TIMEOUT):
                interrupted = await _interrupted_undo(locator, view)
        except (SagaError, TimeoutError):  # `saga doctor` reports the database
            return _in_doubt(view, "an undo whose run was deleted")
        if interrupted is not None:
            return interrupted.bare_view
    is_over = view.state in FINAL_STATES and view.state != "TERMINATED"
    if is_over and not _may_hide_another(view) and view.locks is None and not view.row_locks:
        return with_reasons(view, given_up_reasons(view)) or view  # one with locks may still be releasing them
    location = await locator.locate(view.id)
    if _may_hide_another(view):
        try:
            lost = await _lost_saga(locator, location)
        except SagaError:  # `saga doctor` reports the database
            lost, view = None, _in_doubt(view, "open effects of another run")
        if lost is not None:
            return replace(lost.mark(view), stuck=(lost.reason,))
    verdict, workflow = verdict_of(location), location.workflow
    saga = None
    if location.run is not None and workflow is None:
        saga = await terminated_saga(locator, location.run.run, view)
    elif verdict is not None and location.member is not None:
        saga = left_saga(location.member)
    elif verdict is not None:
        saga = OpenSaga(view.id, verdict, view.saga, (f"not ended, it was {view.state}",))
    if saga is not None or workflow is None:
        reasons = [] if saga is None else [saga.reason]
        view = view if saga is None else saga.mark_terminated(view)
        return with_reasons(view, reasons + given_up_reasons(view)) or view
    shown = {step.id for step in view.steps}
    view, reasons = await with_earlier_saga(locator, workflow, view)
    reasons += await temporal_reasons(locator.temporal, workflow, workers, shown) + reported_reasons(view)
    reasons += await ParkedHolders(locator, workers).reasons(view, wait_messages(view))
    reasons += await PausedChildren(locator, workers).reasons(view)
    try:
        reasons += await _refused_replies(locator, view)
    except SagaError:
        view = _in_doubt(view, "a refused reply")
    reasons += given_up_reasons(view)
    return with_reasons(view, reasons) or view


def _in_doubt(view: SagaView, hidden: str) -> SagaView:
    """The view of a saga while a database does not answer. ``hidden``: what it may have."""
    return replace(view, incomplete=view.incomplete or f"a database does not answer, so {hidden} would not be shown")


def _may_hide_another(view: SagaView) -> bool:
    """True for the view of a run that does not answer, that nobody has signed, or after which the saga of this id may
    have been started again.
    """
    return view.state in (*STARTED_AGAIN, "TERMINATED") or view.incomplete is not None


async def _interrupted_undo(locator: Locator, view: SagaView) -> OpenSaga | None:
    """The undo of a completed saga that has begun and of which Temporal has no run. Raises SagaError."""
    location = await locator.locate(view.id)
    effects = await _effects(locator, view.id)
    return None if effects is None else await interrupted_undo(locator, location, effects, view)


async def _lost_saga(locator: Locator, location: Location) -> OpenSaga | None:
    """The saga whose id the run at this location has, if no run ends its effects. Raises SagaError."""
    effects = await _effects(locator, location.saga_id)
    return None if effects is None else await lost_saga(locator, location, effects)


async def _effects(locator: Locator, saga_id: str) -> Sequence[RecordedEffect] | None:
    """The effects of a saga in the guards; None if there is no database. Raises SagaError."""
    if locator.settings is None or not fits_guard_key(saga_id) or not locator.settings.sql_connections():
        return None
    from saga_workers.location.traces import recorded_effects

    return await recorded_effects(locator.settings, saga_id)


def awaits_reply(view: SagaView) -> bool:
    """True if the saga waits for the reply to a command."""
    calls = [call for step in view.steps for call in (step, step.compensation, step.confirmation)]
    return any(call is not None and call.uses == REQUEST and call.state in _WAITING for call in calls)


async def _refused_replies(locator: Locator, view: SagaView) -> list[str]:
    """The replies to commands for which the saga waits that were refused, in words. Raises SagaError."""
    if locator.settings is None or not awaits_reply(view):
        return []
    from saga_workers.location.refused_replies import refused_replies

    return [refused.text for refused in await refused_replies(locator.settings, [view.id])]


def with_reasons(view: SagaView, reasons: Sequence[str]) -> SagaView | None:
    """The view with its reasons; None if it has none. A parked saga has one, also if its worker cannot tell it."""
    if view.state == "PARKED" and not reasons:
        reasons = ["it is parked" + (f", but why is not known: {view.incomplete}" if view.incomplete else "")]
    return replace(view, stuck=tuple(reasons)) if reasons else None


async def with_earlier_saga(locator: Locator, run: RunDescription, view: SagaView) -> tuple[SagaView, list[str]]:
    """The view of a saga, with the reason if it ran into the effects of another run under its id: one that was ended by
    its start, and is resumed, or one that has ended by itself.
    """
    if locator.settings is None or not any(parked.why in OTHER_ARGUMENTS for parked in view.parked):
        return view, []
    saga = await replaced_saga(locator, locator.settings, run, view)
    if saga is None:
        return view, []
    return saga.mark(view), [saga.reason]
