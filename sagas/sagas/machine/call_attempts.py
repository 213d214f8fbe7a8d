"""How often a call of the machine is attempted, and how its attempts count.

A call may make several attempts by itself (the platform's retries); the machine schedules the others.
"""

from __future__ import annotations

from dataclasses import replace

from sagas.definition.model import Operation, Retry, StepDefinition, has_effect, is_nested, remaining_retry
from sagas.machine.state import Entry, Flight, OperationState, SagaRun
from sagas.protocol import outcomes
from sagas.protocol.outcomes import Outcome


def is_retried_without_limit(run: SagaRun, step: StepDefinition, op: str) -> bool:
    """True for an operation that only its success ends: a confirm, and past the commit point a `do` that has no other
    `on_failure`.
    """
    return op == "confirm" or (op == "do" and run.committed and step.on_failure == "compensate")


def with_at_least_one_attempt(retry: Retry) -> Retry:
    """The policy without `max_attempts: 0`, which Temporal takes for no limit."""
    return retry if retry.max_attempts >= 1 else replace(retry, max_attempts=1)


def is_single_attempt(step: StepDefinition) -> bool:
    """True when the participant does not honour the key: an attempt is repeated only after a probe returns absent."""
    return not step.do.guarded and not step.do.idempotent and step.kind != "read"


def machine_repeats(step: StepDefinition) -> bool:
    """True when the machine repeats a forward attempt that certainly had no effect, and not the platform, which says of
    a call that is cancelled between two attempts nothing about them. A guard knows how they have ended, and a pivot is
    not cancelled.
    """
    if is_single_attempt(step):
        return True
    operation = step.do
    is_unguarded_call = operation.local and not operation.guarded and not is_nested(step) and step.execution == "remote"
    return is_unguarded_call and not step.pivot and has_effect(step)


def returns_failure(run: SagaRun, entry: Entry) -> bool:
    """True when an attempt without an effect ends the next call of the entry, see :func:`machine_repeats`. Past the
    commit point nothing is undone, and after an attempt with an unknown outcome it would prove nothing.
    """
    is_clean = entry.outcome in (None, "failed", "rejected")
    return machine_repeats(run.step(entry)) and is_clean and not run.committed


def call_retry(step: StepDefinition) -> Retry:
    """The retries the platform makes within one forward call."""
    return (
        replace(step.do.retry, max_attempts=1) if is_single_attempt(step) else with_at_least_one_attempt(step.do.retry)
    )


def remaining_of_call(run: SagaRun, entry: Entry, flight: Flight, retry: Retry) -> Retry:
    """The remaining retries of a call that follows an uncounted attempt, or one that the machine repeats."""
    used = max(entry.min_attempts - flight.attempts_made - entry.retry_baseline, 0)
    is_continued = entry.uncounted or (machine_repeats(run.step(entry)) and not run.committed)
    if not used or not is_continued:
        return retry
    since = entry.retry_baseline_at if entry.retry_baseline_at is not None else entry.started_at
    return remaining_retry(retry, used, 0.0 if since is None else flight.started_at - since)


def may_retry(run: SagaRun, entry: Entry) -> bool:
    """True when the step's retry policy allows another attempt; an operator's retry resets the count."""
    retry = run.step(entry).do.retry
    if entry.min_attempts - entry.retry_baseline >= retry.max_attempts:
        return False
    since = entry.retry_baseline_at if entry.retry_baseline_at is not None else entry.started_at
    return retry.give_up_after is None or since is None or run.now - since < retry.give_up_after


def gives_up_uncounted(run: SagaRun, entry: Entry, outcome: Outcome) -> bool:
    """True when a worker of another project has not counted as many attempts as the step may make.

    An action that no worker knows is not of them: its worker may be about to be deployed.
    """
    operation = run.step(entry).do
    if outcome.counted or operation.local:
        return False
    return entry.uncounted >= operation.retry.max_attempts or not may_retry(run, entry)


def schedule_retry(run: SagaRun, entry: Entry, seconds: float) -> None:
    name = run.step(entry).name
    run.start_flight(f"{entry.id}~retry", "timer", entry, "do", seconds=seconds, summary=f"retry {name}")


def count_attempts(state: Entry | OperationState, outcome: Outcome, attempts: int | None, retry: Retry) -> None:
    """Add the attempts of a call that has ended to those of the operation."""
    state.min_attempts, state.attempts = outcomes.count_attempts(
        state.min_attempts, attempts, state.attempts, outcome, retry
    )


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


def count_earlier_run(run: SagaRun, state: Entry | OperationState, operation: Operation) -> bool:
    """Count an attempt of an earlier run of the saga before the first one of this run, if no guard knows of it.

    Returns whether one is counted.
    """
    if not run.repeats or state.min_attempts or operation.guarded:
        return False
    doubt(run, state)
    return True


def doubt(run: SagaRun, state: Entry | OperationState) -> None:
    """Count one attempt with an unknown outcome, which an earlier run may have made."""
    count_hidden_attempt(state)
    state.outcome = "unknown"
    if isinstance(state, Entry):
        state.last_attempt_ended_at = run.now


def believed_promises(run: SagaRun, operation: Operation) -> Operation:
    """The operation without what its participant promises for one request only: an earlier run of the saga may have
    sent another one under the same key, and the rejection may be about that.
    """
    return replace(operation, remembers_rejections=False) if run.repeats else operation


def counting_operation(entry: Entry, flight: Flight) -> Entry | OperationState | None:
    """The operation that counts the attempts of a call; None for a call without an effect."""
    return {"do": entry, "write": entry, "undo": entry.undo, "confirm": entry.confirm}.get(flight.call_kind)


def count_earlier_attempts(entry: Entry, flight: Flight, attempts: int, *, unsure: bool) -> None:
    """Count attempts of a call that goes on in another workflow; ``unsure``: they may have had an effect."""
    state = counting_operation(entry, flight)
    if state is None:
        return
    clean = state.min_attempts == 0 or state.outcome in ("rejected", "failed")
    state.outcome = "unknown" if unsure or not clean else "failed"
    state.min_attempts += attempts
    if state.attempts is not None:
        state.attempts += attempts
