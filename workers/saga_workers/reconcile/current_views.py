"""The views of sagas as Temporal has them now, without asking their workers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from saga_workers.location.locator import Locator
from saga_workers.location.verified_outcomes import outcome_of
from saga_workers.temporal.temporal_runs import RunInfo
from saga_workers.temporal.visible_states import may_be_undone
from saga_workers.views.saga_view import bare_view, with_undo
from sagas.protocol.doubtful_outcomes import IN_LEDGER, missing_key
from sagas.protocol.saga_view import SagaView

_CONCURRENCY = 32


async def current_view(locator: Locator, saga_id: str) -> SagaView | None:
    """The view of one saga with that of its undo, as far as Temporal has it; None if it does not know the id, or only
    from a run that was never accepted, while the ledger has the saga.
    """
    location = await locator.within_temporal().locate(saga_id)
    if location.run is None:
        return None
    if location.run.never_accepted and (await locator.locate(saga_id)).run is None:
        return None
    view = await combined_view(locator, location.run.run, may_have_undo=location.undo is not None)
    if view.can_undo and (row := (await locator.locate(saga_id)).row) is not None:
        return row.view  # the ledger has the end of an undo whose run is deleted
    return view


async def current_views(locator: Locator, saga_ids: Sequence[str]) -> dict[str, SagaView | None]:
    """The :func:`current_view` of each saga."""
    gate = asyncio.Semaphore(_CONCURRENCY)

    async def ask(saga_id: str) -> SagaView | None:
        async with gate:
            return await current_view(locator, saga_id)

    return dict(zip(saga_ids, await asyncio.gather(*map(ask, saga_ids)), strict=True))


async def combined_view(locator: Locator, run: RunInfo, *, may_have_undo: bool) -> SagaView:
    """The view of a run, with that of its undo. ``may_have_undo``: there is a run with the id of the undo."""
    view = await _decided_view(locator, run)
    undo = await locator.undo_of(run) if may_have_undo and may_be_undone(view.state) else None
    if undo is None:
        return view
    if undo.run.running:
        return replace(view, state="COMPENSATING", ended_at=None)
    return with_undo(view, await _decided_view(locator, undo.run))


async def _decided_view(locator: Locator, run: RunInfo) -> SagaView:
    """The view that decides: the one that a closed run has left, if it is believed, or that of the ledger; else what
    Temporal alone knows, marked as incomplete. That of the ledger is marked if the key of the outcome is missing.
    """
    outcome = await outcome_of(locator, run)
    if outcome.view is not None and missing_key(outcome.doubt) is not None:
        return replace(outcome.view, incomplete=f"{outcome.doubt}{IN_LEDGER}")
    why = "the run has no view" if outcome.is_believed else outcome.doubt
    return outcome.view or replace(await bare_view(run), state=outcome.state, incomplete=why)
