"""Calls that a worker has not performed because of a standing pause, for the view; they are made again later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sagas.machine.state import Flight, SagaRun
from sagas.protocol.held_outcomes import pause_behind
from sagas.protocol.outcomes import PAUSED, Failure, Outcome, is_held_back
from sagas.protocol.saga_view import PauseView
from sagas.protocol.standing_pause import ANSWERED, StandingPause
from sagas.text.shortening import shorten

_MAX_ANSWER = 300
"""Characters of the last answer of a participant whose next calls are held back."""


def noted(run: SagaRun, flight: Flight, outcome: Outcome) -> Outcome:
    """The outcome, after the pause is remembered that the call waits for, or that it waits for none any more."""
    run.held_calls.pop(flight.id, None)
    if (pause := pause_behind(outcome)) is not None:
        run.held_calls[flight.id] = (flight.entry, pause)
    return outcome


def failure_json(before: Mapping[str, Any] | None, failure: Failure, outcome: Outcome) -> dict[str, Any]:
    """The failure of an attempt for the view; ``before``: that of the attempt before it.

    An attempt that is held back has no answer of its own: it keeps that of the last one that was made.
    """
    error = failure.to_json()
    if not is_held_back(outcome) or before is None:
        return error
    answered = before["details"].get(ANSWERED) if before["type"] == PAUSED else _answer(before)
    return error if answered is None else {**error, "details": {**error["details"], ANSWERED: answered}}


def _answer(error: Mapping[str, Any]) -> dict[str, Any]:
    status = error["details"].get("status")
    message = shorten(error["message"], _MAX_ANSWER)
    return {"status": status, "message": message} if isinstance(status, int) else {"message": message}


def shown(run: SagaRun) -> PauseView | None:
    """The newest pause that holds calls back, with the entries of all calls that wait; None without one."""
    if not run.held_calls or run.ended_at is not None:
        return None
    waiting = {flight.entry for flight in run.flights.values()}
    held = [(entry, pause) for entry, pause in run.held_calls.values() if entry in waiting]
    if not held:
        return None
    return pause_view(held[-1][1], [entry for entry, _ in held])


def pause_view(pause: StandingPause, entries: Iterable[str]) -> PauseView:
    """The pause as the view of a saga shows it, with the entries whose calls wait for its end."""
    held = tuple(dict.fromkeys(entries))
    return PauseView(at=pause.at, who=pause.who, reason=pause.reason, held=held, kind=pause.kind, name=pause.name)
