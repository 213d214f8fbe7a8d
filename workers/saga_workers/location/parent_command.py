"""The command that starts a nested saga again, after Temporal has deleted its run: one for its parent, unless that is
undone.
"""

from __future__ import annotations

from saga_workers.location.location import Location
from saga_workers.temporal.claimed_states import visible_state
from sagas.text.shell import saga_command


def is_undone(parent: Location) -> bool:
    """True if the saga is undone, as far as Temporal alone or the ledger tells: then it starts no nested saga again."""
    newest = parent.undo or parent.run
    if newest is not None:
        return not newest.never_accepted and visible_state(newest.run) == "COMPENSATED"
    return parent.row is not None and parent.row.view.state == "COMPENSATED"


def parent_command(saga_id: str, parent: Location) -> str:
    """The command about the ``parent`` that starts the nested saga again, or that shows how to go on, if only the view
    of the parent tells.
    """
    run = parent.open_run
    if run is None:
        if is_undone(parent):
            return saga_command("resume", saga_id)
        is_gone = parent.kind in ("unknown", "terminated")
        return saga_command("resume" if is_gone else "show", parent.saga_id)
    step = saga_id.removeprefix(f"{parent.saga_id}/").partition("@")[0]
    attributes = run.run.attributes
    goes_forward = attributes.get("SagaReason") is None
    if visible_state(run.run) == "PARKED" and attributes.get("SagaStep") == step and goes_forward:
        return saga_command("resolve", parent.saga_id, step, "retry", reason="…")
    return saga_command("show", parent.saga_id)
