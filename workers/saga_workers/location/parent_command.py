"""The command that starts a nested saga again, after Temporal has deleted its run: one for its parent, unless that is
undone.
"""

from __future__ import annotations

from typing import Protocol

from temporalio.client import Client as Temporal

from saga_workers.location.location import Location
from saga_workers.location.verified_outcomes import OutcomeReader, outcome_of, state_of
from saga_workers.temporal.root_starts import root_start_of_run
from saga_workers.temporal.run_times import PRECISION, was_closed_before, was_started_by
from saga_workers.temporal.visible_states import visible_state
from sagas.protocol.origin import Origin, same_owner
from sagas.text.shell import saga_command


class _Reader(OutcomeReader, Protocol):
    temporal: Temporal


async def is_undone(locator: _Reader, parent: Location, child: str, origin: Origin) -> bool:
    """True if the saga that has started the nested one with this ``origin`` is undone, as far as Temporal alone or the
    ledger tells: then it starts no nested saga again. Raises LedgerUnavailable, RPCError.
    """
    return await _ends_undone(locator, parent) and await _has_started(locator, parent, child, origin)


async def _has_started(locator: _Reader, parent: Location, child: str, origin: Origin) -> bool:
    """False if it was another saga under the id of the parent that has ended: one with another root saga, or one that
    knows no such nested saga, and was started after it.
    """
    began = origin.started_at
    if parent.run is not None:
        if not same_owner(await root_start_of_run(locator.temporal, parent.run, locator.keys), origin.root_start):
            return False
        run = parent.run.run
        if was_started_by(run, began):
            return not was_closed_before(run, began)
        view = (await outcome_of(locator, run)).view
    elif parent.row is not None:
        if not same_owner(parent.row.start_of_root, origin.root_start):
            return False
        if parent.row.started_at.timestamp() - PRECISION <= began:
            return True
        view = parent.row.view
    else:
        return True
    return view is not None and child in {nested.id for nested in view.children}


async def _ends_undone(locator: _Reader, parent: Location) -> bool:
    newest = parent.undo or parent.run
    if newest is not None:
        return not newest.never_accepted and await state_of(locator, newest.run) == "COMPENSATED"
    return parent.row is not None and parent.row.view.state == "COMPENSATED"


async def parent_command(locator: _Reader, saga_id: str, parent: Location, origin: Origin) -> str:
    """The command about the ``parent`` that starts the nested saga again, or that shows how to go on, if only the view
    of the parent tells.
    """
    run = parent.open_run
    if run is None:
        if await is_undone(locator, parent, saga_id, origin):
            return saga_command("resume", saga_id)
        is_gone = parent.kind in ("unknown", "terminated") or await _ends_undone(locator, parent)
        return saga_command("resume" if is_gone else "show", parent.saga_id)
    step = saga_id.removeprefix(f"{parent.saga_id}/").partition("@")[0]
    attributes = run.run.attributes
    goes_forward = attributes.get("SagaReason") is None
    if visible_state(run.run) == "PARKED" and attributes.get("SagaStep") == step and goes_forward:
        return saga_command("resolve", parent.saga_id, step, "retry", reason="…")
    return saga_command("show", parent.saga_id)
