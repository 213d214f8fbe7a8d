"""The command that makes the parent of a nested saga start it again, after Temporal has deleted its run."""

from __future__ import annotations

from saga_workers.location.location import Location
from saga_workers.temporal.claimed_states import visible_state
from sagas.text.shell import saga_command


def parent_command(saga_id: str, parent: Location) -> str:
    """The command about the ``parent`` that starts the nested saga again, or that shows how to go on, if only the view
    of the parent tells.
    """
    run = parent.open_run
    if run is None:
        is_gone = parent.kind in ("unknown", "terminated")
        return saga_command("resume" if is_gone else "show", parent.saga_id)
    step = saga_id.removeprefix(f"{parent.saga_id}/").partition("@")[0]
    attributes = run.run.attributes
    goes_forward = attributes.get("SagaReason") is None
    if visible_state(run.run) == "PARKED" and attributes.get("SagaStep") == step and goes_forward:
        return saga_command("resolve", parent.saga_id, step, "retry", reason="…")
    return saga_command("show", parent.saga_id)
