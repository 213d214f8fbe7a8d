"""How often a call of the machine is repeated, and by whom.

A call may make several attempts by itself (the platform's retries); the machine schedules the others.
"""

from __future__ import annotations

from dataclasses import replace

from sagas.definition.model import Operation, Retry, StepDefinition, backoff, has_effect, is_nested, remaining_retry
from sagas.machine.state import Entry, Flight, OperationState, SagaRun
from sagas.protocol.outcomes import Outcome, is_held_back


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
    not cancelled. Nothing outside of its worker sees the attempts of a local activity, so the machine, which shows
    them, repeats it.
    """
    if is_single_attempt(step) or step.execution == "local":
        return True
    operation = step.do
    return operation.local and not operation.guarded and not is_nested(step) and not step.pivot and has_effect(step)


def returns_failure(run: SagaRun, entry: Entry) -> bool:
    """True when an attempt without an effect ends the next call of the entry, see :func:`machine_repeats`. Past the
    commit point nothing is undone, so only a local one does, which is shown then; and after an attempt with an unknown
    outcome it would prove nothing.
    """
    step = run.step(entry)
    is_clean = entry.outcome in (None, "failed", "rejected")
    return machine_repeats(step) and is_clean and (not run.committed or step.execution == "local")


def is_to_be_repeated(run: SagaRun, entry: Entry, outcome: Outcome) -> bool:
    """True after a call that certainly had no effect, if the machine makes the other attempts of the step."""
    return outcome.kind == "failed" and outcome.retryable and machine_repeats(run.step(entry)) and may_retry(run, entry)


def interval_before_next(step: StepDefinition, entry: Entry, outcome: Outcome) -> float:
    """Seconds before the next attempt of the step: those that the participant asks for, or those of its policy."""
    return backoff(step.do.retry, entry.min_attempts) if outcome.retry_after is None else outcome.retry_after


def is_first_foreign_attempt(operation: Operation, min_attempts: int) -> bool:
    """True for a call to a worker of another project that makes only the first attempt.

    Temporal tells only the outcome of the last attempt of a call, without its number. A rejection by the only attempt
    of a call is that of the first one, whether or not the worker says so. An action with a heartbeat goes on in the
    next attempt of the same call where the one before has stopped, so its attempts stay together.
    """
    is_whole = operation.local or operation.heartbeat is not None
    return not is_whole and min_attempts == 0 and operation.retry.max_attempts > 1


def is_first_of_more_attempts(step: StepDefinition, min_attempts: int) -> bool:
    """True for a forward call that makes only the first attempt, after which the machine makes the others, also if its
    outcome is unknown: its participant honours the key.
    """
    return not is_single_attempt(step) and is_first_foreign_attempt(step.do, min_attempts)


def call_retry(step: StepDefinition, min_attempts: int) -> Retry:
    """The retries the platform makes within one forward call, after ``min_attempts`` earlier attempts."""
    if is_single_attempt(step) or is_first_of_more_attempts(step, min_attempts):
        return replace(step.do.retry, max_attempts=1)
    return with_at_least_one_attempt(step.do.retry)


def operation_retry(operation: Operation, state: OperationState) -> Retry:
    """The retries the platform makes within one call of an undo or a confirm."""
    if is_first_foreign_attempt(operation, state.min_attempts):
        return replace(operation.retry, max_attempts=1)
    retry = with_at_least_one_attempt(operation.retry)
    return retry if operation.local else remaining_retry(retry, state.min_attempts - state.retry_baseline, 0.0)


def remaining_of_call(run: SagaRun, entry: Entry, flight: Flight, retry: Retry) -> Retry:
    """The remaining retries of a call that follows an uncounted attempt, or one that the machine repeats."""
    used = max(entry.min_attempts - flight.attempts_made - entry.retry_baseline, 0)
    step = run.step(entry)
    is_continued = entry.uncounted or not step.do.local or (machine_repeats(step) and not run.committed)
    if not used or not is_continued:
        return retry
    since = entry.retry_baseline_at if entry.retry_baseline_at is not None else entry.started_at
    return remaining_retry(retry, used, 0.0 if since is None else flight.started_at - since)


def longest_interval(retry: Retry, outcome: Outcome) -> float:
    """Seconds until a call is repeated that waits for its database, for the end of a pause, or for its connection."""
    if (is_held_back(outcome) or not outcome.charged) and outcome.retry_after is not None:
        return outcome.retry_after
    return retry.max_interval


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
