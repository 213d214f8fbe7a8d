"""Calls that a worker has not performed because of a standing pause, for the view; they are made again later."""

from __future__ import annotations

from collections.abc import Iterable

from sagas.machine.state import Flight, SagaRun
from sagas.protocol.outcomes import Outcome, is_held
from sagas.protocol.saga_view import PauseView
from sagas.protocol.standing_pause import StandingPause


def noted(run: SagaRun, flight: Flight, outcome: Outcome) -> Outcome:
    """The outcome, after the pause is remembered that holds the call back, or that none does any more."""
    run.held_calls.pop(flight.id, None)
    if is_held(outcome) and outcome.failure is not None:
        pause = StandingPause.from_json(outcome.failure.details)
        if pause is not None:
            run.held_calls[flight.id] = (flight.entry, pause)
    return outcome


def shown(run: SagaRun) -> PauseView | None:
    """The newest pause that holds calls back, with the entries of all calls that wait; None without one."""
    waiting = {flight.entry for flight in run.flights.values()}
    held = [(entry, pause) for entry, pause in run.held_calls.values() if entry in waiting]
    if not held:
        return None
    return pause_view(held[-1][1], [entry for entry, _ in held])


def pause_view(pause: StandingPause, entries: Iterable[str]) -> PauseView:
    """The pause as the view of a saga shows it, with the entries whose calls wait for its end."""
    held = tuple(dict.fromkeys(entries))
    return PauseView(at=pause.at, who=pause.who, reason=pause.reason, held=held, kind=pause.kind, name=pause.name)
