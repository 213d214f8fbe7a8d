"""The requests that a saga would accept now, as far as its view tells."""

from __future__ import annotations

from collections.abc import Mapping

from sagas.protocol.access_view import Operation
from sagas.protocol.saga_view import ParkedView, SagaView


def possible_requests(view: SagaView) -> tuple[Operation, ...]:
    """The requests to the whole saga: cancel, pause, resume or undo."""
    if view.state == "COMPLETED" and view.can_undo:
        return ("undo",)
    if view.ended_at is not None and awaits_event(view):
        return ("cancel",)
    if view.ended_at is not None or not _has_run(view):
        return ()
    is_paused = view.paused is not None and view.paused.kind is None
    return (*(("cancel",) if view.can_be_cancelled else ()), "resume" if is_paused else "pause")


def awaits_event(view: SagaView) -> bool:
    """True for a compensated saga that its event starts again, or should have: a cancel ends that."""
    return view.redelivery is not None and (view.redelivery.is_due or bool(view.redelivery.unserved))


def awaited_signals(view: SagaView) -> Mapping[str, str]:
    """The signals for which steps wait now, each with the entry id of its step."""
    if view.ended_at is not None or not _has_run(view):
        return {}
    return {
        step.arguments["signal"]: step.id
        for step in view.steps
        if step.uses == "wait"
        and step.state == "RUNNING"
        and step.arguments is not None
        and isinstance(step.arguments.get("signal"), str)
    }


def takes_signals(view: SagaView) -> bool:
    """True if the saga still receives signals; one that comes early is kept for the step that will wait for it."""
    return view.ended_at is None and _has_run(view)


def parked_operation(view: SagaView, step: str | None) -> ParkedView | None:
    """The parked operation of an entry about which a person can decide."""
    return next((parked for parked in view.parked if parked.step == step), None) if _has_run(view) else None


def _has_run(view: SagaView) -> bool:
    return view.source != "ledger" and view.state not in ("TERMINATED", "FAILED")
