"""The requests that a saga would accept now, as far as its view tells."""

from __future__ import annotations

from sagas.protocol.access_view import Operation
from sagas.protocol.saga_view import ParkedView, SagaView


def possible_requests(view: SagaView) -> tuple[Operation, ...]:
    """The requests to the whole saga: cancel, pause or resume."""
    if view.ended_at is not None or not _has_run(view):
        return ()
    is_paused = view.paused is not None and view.paused.kind is None
    return (*(("cancel",) if view.can_be_cancelled else ()), "resume" if is_paused else "pause")


def parked_operation(view: SagaView, step: str | None) -> ParkedView | None:
    """The parked operation of an entry about which a person can decide."""
    return next((parked for parked in view.parked if parked.step == step), None) if _has_run(view) else None


def _has_run(view: SagaView) -> bool:
    return view.source != "ledger" and view.state not in ("TERMINATED", "FAILED")
