"""How the attempts of a call count for its operation."""

from __future__ import annotations

from sagas.definition.model import Operation, Retry
from sagas.machine.state import Entry, Flight, OperationState, SagaRun
from sagas.protocol import outcomes
from sagas.protocol.messages import AttemptsMade
from sagas.protocol.outcomes import Outcome


def attempts_made(run: SagaRun, event: AttemptsMade) -> None:
    """The call in flight is not the first of its operation any more, so its end alone does not tell what happened."""
    flight, entry = run.flight_of(event.id)
    if flight is None or entry is None:
        return
    flight.attempts_made, flight.due_at = flight.attempts_made + event.attempts - event.uncharged, event.due_at
    count_earlier_attempts(entry, flight, event.attempts, unsure=event.unsure, uncharged=event.uncharged)


def count_attempts(state: Entry | OperationState, outcome: Outcome, attempts: int | None, retry: Retry) -> None:
    """Add the attempts of a call that has ended to those of the operation."""
    state.min_attempts, state.attempts = outcomes.count_attempts(
        state.min_attempts, attempts, state.attempts, outcome, retry
    )
    if not outcome.charged:
        state.retry_baseline += 1


def end_operation_call(state: OperationState, operation: Operation, outcome: Outcome, attempts: int | None) -> None:
    """Add the attempts of an undo or confirm that has ended, and what they tell, to those before."""
    before = state.min_attempts
    count_attempts(state, outcome, attempts, operation.retry)
    if outcomes.hides_earlier_attempts(outcome, attempts):
        count_hidden_attempt(state)
        state.outcome = "unknown"
    elif not outcome.not_started:
        state.outcome = outcomes.merge_outcome(operation, outcome, before, state.outcome)


def count_hidden_attempt(state: Entry | OperationState) -> None:
    """Count an attempt that may have reached the participant without its outcome being known: a later attempt is not
    the first one then, and the operation has as many retries as before.
    """
    state.min_attempts += 1
    state.retry_baseline += 1


def counting_operation(entry: Entry, flight: Flight) -> Entry | OperationState | None:
    """The operation that counts the attempts of a call; None for a call without an effect."""
    return {"do": entry, "write": entry, "undo": entry.undo, "confirm": entry.confirm}.get(flight.call_kind)


def count_earlier_attempts(entry: Entry, flight: Flight, attempts: int, *, unsure: bool, uncharged: int) -> None:
    """Count attempts of a call that goes on in another workflow; ``unsure``: they may have had an effect.

    ``uncharged``: how many of them use up none of those that the operation may make.
    """
    state = counting_operation(entry, flight)
    if state is None:
        return
    clean = state.min_attempts == 0 or state.outcome in ("rejected", "failed")
    state.outcome = "unknown" if unsure or not clean else "failed"
    state.min_attempts += attempts
    state.retry_baseline += uncharged
    if state.attempts is not None:
        state.attempts += attempts
