"""The reasons that a saga reports itself why it does not go on: other fields of its view tell them."""

from __future__ import annotations

from saga_workers.views.notifications import exhausted_reasons
from sagas.protocol.outcomes import PAUSED
from sagas.protocol.saga_view import OperationView, SagaView, StepView

MANY_ATTEMPTS = 5
"""An operation with more attempts than this is stuck."""


def _pause_reason(view: SagaView) -> str | None:
    """The pause, and the command that ends it."""
    return None if view.pause_text is None else f"{view.pause_text}; `{view.resume_command}` ends it"


def reported_reasons(view: SagaView) -> list[str]:
    """Reasons that a running saga reports: parked, paused, overdue, an operation with many attempts."""
    nested = view.blocked_steps
    reasons = [
        f"{operation.step} is {'blocked' if operation.step in nested else 'parked'} ({operation.op}): {operation.why}"
        for operation in view.parked
    ]
    reasons += [reason for reason in (_pause_reason(view), view.lock_wait) if reason is not None]
    if view.overdue:
        reasons.append("overdue: it runs longer than its warn_after")
    for step in view.steps:
        for what, row in (("", step), ("the undo of ", step.compensation), ("the confirm of ", step.confirmation)):
            if row is None or row.state != "RUNNING":
                continue
            if (row.attempts or 0) > MANY_ATTEMPTS:
                error = (row.error and row.error.message) or "no answer"
                reasons.append(f"{what}{step.id} was attempted {row.attempts} times; the last failure: {error}")
            if row.error and row.error.type != PAUSED and (times := _uncounted(row)):
                reasons.append(f"{what}{step.id} could not be attempted{times}: {row.error.message}")
    return reasons


def _uncounted(row: StepView | OperationView) -> str:
    """How often the attempt could not be made, in words; empty if it was made. Only steps count these attempts."""
    if isinstance(row, OperationView):
        return " yet" if row.attempts == 0 else ""
    times = ((row.error and row.error.details) or {}).get("uncounted")
    return "" if not times else ", once" if times == 1 else f", {times} times in a row"


def unreported_reasons(view: SagaView) -> list[str]:
    """The reasons in ``stuck`` that no other field of the view tells, for pages that show those fields."""
    told = {*reported_reasons(view), *exhausted_reasons(view)}
    return [reason for reason in view.stuck or () if reason not in told and reason not in (view.incomplete or "")]
