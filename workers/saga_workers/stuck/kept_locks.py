"""The locks of a saga without a run that nobody may release, because its effects are still there."""

from __future__ import annotations

from dataclasses import dataclass

from saga_workers.location.locator import Locator
from saga_workers.stuck.open_sagas import find_lost
from saga_workers.stuck.verdict import has_open_effects, terminated_saga
from saga_workers.views.saga_view import read_view
from sagas.settings import Settings
from sagas.text.shell import saga_command

_STILL_THERE = "its effects are still there"


@dataclass(frozen=True, slots=True)
class KeptLocks:
    """Why a saga keeps its locks, in words, and the command that goes on with it."""

    why: str
    command: str


async def kept_locks(locator: Locator, settings: Settings, saga_id: str) -> KeptLocks | None:
    """Why a saga keeps its locks; None if it is over, so that they may be released. Raises SagaError, RPCError."""
    within_temporal = locator.within_temporal()
    location = await within_temporal.locate(saga_id)
    if location.home is not None:
        view = await read_view(within_temporal, saga_id)
        if view.is_unverified:
            return KeptLocks(f"it is {view.state} {view.incomplete}", saga_command("show", saga_id))
        described = location.undo or location.run
        if described is not None:  # a step that only reads, or waits, has no effects
            left = await terminated_saga(within_temporal, described.run, view)
            if left is not None:
                return KeptLocks(_STILL_THERE, left.command)
        elif has_open_effects(view):
            return KeptLocks(_STILL_THERE, saga_command("resume", saga_id))
    lost = await find_lost(locator, settings, saga_id, suspects=[saga_id])  # another saga may have the id now
    return KeptLocks(_STILL_THERE, lost[0].command) if lost else None
