"""The commit point: when it is reached, the pivot that decides it, the confirms that follow, and the completion.

Rules 5 and 13. A pivot that provably never happens posts PivotFailed, which starts the rollback.
"""

from __future__ import annotations

from collections.abc import Sequence

from sagas.definition.model import backoff
from sagas.machine import attempt_counts, calls, failure_reasons, retries, standing_pauses
from sagas.machine.earlier import effects, operators
from sagas.machine.earlier.doubts import believed_promises, count_earlier_run
from sagas.machine.expressions import expression_fields
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.finish import finish
from sagas.machine.internal_events import (
    ConfirmEntry,
    ConfirmSettled,
    EntrySettled,
    LookUpEffect,
    PivotFailed,
    PivotFoundDone,
    ReachCommitPoint,
    RequestRollback,
)
from sagas.machine.locking import locks
from sagas.machine.state import OUTPUT_STEP, Entry, OperationState, ParkedOperation, SagaRun, StepRecord
from sagas.protocol import outcomes
from sagas.protocol.messages import RecordState
from sagas.protocol.outcomes import Outcome
from sagas.text.shell import saga_command
from sagas.text.shortening import join_names


def start_committed(run: SagaRun) -> None:
    """A saga whose steps can all only go forward starts past the commit point."""
    run.phase, run.state, run.committed_at = "committed", "COMMITTED", run.now


def pivot_done(run: SagaRun, entry: Entry) -> None:
    """Settle the pivot as done, and reach the commit point; one ahead of this run only forbids the rollback."""
    if entry.ahead:
        run.post(PivotFoundDone())
        return
    run.post(EntrySettled(entry, True))
    run.post(ReachCommitPoint())


def commit_or_complete(run: SagaRun) -> None:
    """All steps may be settled: without a pivot that reaches the commit point; past it, it completes the saga."""
    if run.steps_open:
        return
    if OUTPUT_STEP not in run.parked and (left_out := effects.left_out(run)):
        _refuse_to_complete(run, left_out)
    elif not run.committed:
        run.post(ReachCommitPoint())
    elif run.confirm_steps_open == 0 and not run.parked:
        _finish_forward(run)


def _refuse_to_complete(run: SagaRun, left_out: Sequence[str]) -> None:
    """An earlier run has done what this one has left out: undo all of it, or park past the commit point."""
    message = f"an earlier run of the saga has done {join_names(left_out, 5)}, which this one has left out"
    if run.is_irrevocable:
        advice = f"`{saga_command('show', run.saga_id)}` shows the keys; undo it by hand, then decide `done`"
        run.parked[OUTPUT_STEP] = ParkedOperation(OUTPUT_STEP, "do", run.now, f"{message}: {advice}")
        return
    cause = {"kind": "failed", "step": None, "type": "EarlierRun", "message": message, "details": {}}
    run.post(RequestRollback(cause))


def reach_commit_point(run: SagaRun) -> None:
    """Pass the point of no return: cancel the deadline and start the confirms."""
    run.phase, run.state = "committed", "COMMITTED"
    run.committed_at = run.now
    run.earlier.pivot_in_place = run.earlier.commit_is_unknown = False
    run.cancel_timer("deadline")
    run.deadline_at = None
    run.pending_cause = None
    locks.release_at_commit(run)
    for id in run.pending_entries:
        # It failed in parallel with the pivot. The pivot succeeded, so rollback is impossible and an operator decides.
        entry = run.entry(id)
        if entry is not None:
            run.park(entry, "do", entry.error["message"] if entry.error else "it failed while the pivot was in flight")
    run.pending_entries = []
    if not run.plan.to_confirm:
        return
    early = [id for id in run.plan.steps if not run.plan.runs_after_commit(id)]
    run.confirm_steps_open = len(early)
    for id in early:
        run.steps[id].confirm_open = len(run.plan.steps[id].needs)
    for id in early:
        if run.steps[id].confirm_open == 0:
            confirm_step(run, run.steps[id])


def undecided_pivot(run: SagaRun) -> Entry | None:
    """The pivot, if it has begun and its outcome is not known yet.

    A `wait` as the pivot is none: until its signal or time has come nothing has happened, so it ends at once (rule 2).
    Parked after its timeout, it has not happened either.
    """
    if run.plan.pivot is None or run.committed:
        return None
    entries = run.steps[run.plan.pivot.id].entries
    if not entries:
        return None
    entry = entries[0]
    if entry.state in ("PENDING", "SKIPPED") or entry.resolved or entry.outcome == "late":
        return None
    return None if run.step(entry).do.uses == "wait" else entry


def stop_pivot_attempts(run: SagaRun, entry: Entry) -> None:
    """Stop the attempts of a guarded pivot; an unguarded one may be retried, to learn its outcome."""
    guarded = run.step(entry).do.guarded
    flight = run.flights.get(entry.flight) if entry.flight else None
    never = entry.min_attempts == 0 and entry.outcome in (None, "rejected", "failed")
    if flight is None:
        if entry.id in run.parked and (guarded or never):
            run.unpark(entry)
            run.post(LookUpEffect(entry, "pivot"))
    elif flight.kind == "call" and flight.call_kind == "do":
        if guarded:
            run.cancel_call(flight)
    elif flight.kind == "timer" and flight.call_kind == "do" and (guarded or never):
        run.end_timer_flight(flight)
        entry.resolved = never
        run.post(LookUpEffect(entry, "pivot"))


def pivot_is_blocked(run: SagaRun, entry: Entry) -> bool:
    """True when a pending cancel or deadline forbids a new attempt of the pivot."""
    return run.pending_cause is not None and run.step(entry).pivot


def pivot_attempt_ended(run: SagaRun, entry: Entry, outcome: Outcome, before: int) -> None:
    """Rule 5: only the pivot's row is decisive. The last attempt's error is only the reason."""
    step = run.step(entry)
    if not step.do.guarded and _was_only_attempt(entry, outcome, before):
        if (
            retries.is_single_attempt(step)
            and outcome.kind == "failed"
            and outcome.retryable
            and run.pending_cause is None
        ):
            retries.schedule_retry(run, entry, backoff(step.do.retry, entry.min_attempts))
            return
        entry.resolved = True
    if step.on_failure == "park" and run.pending_cause is None:
        run.park(entry, "do", failure_reasons.failure_message(entry, "do"))
    elif entry.resolved or (entry.min_attempts == 0 and outcome.kind != "unknown"):
        run.post(PivotFailed(entry, failure_reasons.failure_cause(entry)))
    else:
        run.post(LookUpEffect(entry, "pivot"))


def _was_only_attempt(entry: Entry, outcome: Outcome, before: int) -> bool:
    return (
        outcome.kind in ("rejected", "failed") and outcomes.is_only_attempt(outcome, before) and entry.min_attempts <= 1
    )


def confirm_step(run: SagaRun, record: StepRecord) -> None:
    """Confirm the entries of one step, at most `max_parallel` at a time, then those of its dependants."""
    stack = [record]
    while stack:
        record = stack.pop()
        if record.confirm_closed or not _confirm_entries(run, record):
            continue
        record.confirm_closed = True
        run.confirm_steps_open -= 1
        for dependant in run.plan.dependants[record.id]:
            other = run.steps[dependant]
            other.confirm_open -= 1
            if other.confirm_open == 0 and not run.plan.runs_after_commit(dependant):
                stack.append(other)


def _confirm_entries(run: SagaRun, record: StepRecord) -> bool:
    """Start more confirms; True when every entry of the step is confirmed or needs no confirm."""
    step = run.plan.steps[record.id]
    if step.confirm is None:
        return True
    while record.confirm_cursor < len(record.entries) and record.confirms_running < step.max_parallel:
        entry = record.entries[record.confirm_cursor]
        record.confirm_cursor += 1
        if entry.outcome == "done" and not entry.failure_ignored and not entry.resolved:
            record.confirms_running += 1
            run.post(ConfirmEntry(entry))
    return record.confirms_running == 0 and record.confirm_cursor >= len(record.entries)


def confirm_entry(run: SagaRun, entry: Entry) -> None:
    """Make the tentative effect of this entry final."""
    step, confirm = run.step(entry), entry.confirm
    assert confirm is not None
    assert step.confirm is not None
    entry.state, confirm.state = "CONFIRMING", "RUNNING"
    if confirm.started_at is None:
        confirm.started_at = run.now
    if (told := operators.decided_confirm(run, entry)) is not None:
        _repeat_decision(run, entry, confirm, told)
        return
    count_earlier_run(run, confirm, step.confirm)
    mark = calls.guard_decides_first(step, step.confirm) and not confirm.guard_decided
    calls.send_or_park(run, entry, "confirm", "confirm-mark" if mark else "confirm", confirm)


def _repeat_decision(run: SagaRun, entry: Entry, confirm: OperationState, told: OperationState) -> None:
    """End the confirm as an operator has decided in an earlier run."""
    if told.state == "DONE":
        mark_confirmed(run, entry)
        return
    confirm.state, confirm.ended_at, confirm.error = "SKIPPED", run.now, told.error
    entry.state = "DONE"
    operators.take_residue(run, entry)
    run.post(ConfirmSettled(entry))


def confirm_ended(run: SagaRun, entry: Entry, outcome: Outcome, attempts: int | None, *, mark: bool = False) -> None:
    """Handle the end of a confirm. It is retried without limit; only a definite rejection or a non-retryable failure
    parks it.
    """
    confirm = entry.confirm
    assert confirm is not None
    operation = run.step(entry).confirm
    assert operation is not None
    is_repeated = not mark and retries.is_first_foreign_attempt(operation, confirm.min_attempts)
    if not mark:
        believed = believed_promises(run, operation, outcome)
        attempt_counts.end_operation_call(confirm, believed, outcome, attempts)
    if outcome.kind == "done" and mark and outcome.marker == "elsewhere":
        confirm.guard_decided = True
        if entry.decision is None:
            confirm_entry(run, entry)
        else:
            run.park(entry, "confirm", "an operator has decided about it")  # the decision is carried out by the caller
        return
    if outcome.kind == "done":
        mark_confirmed(run, entry)
        return
    if outcome.failure is not None:
        confirm.error = standing_pauses.failure_json(confirm.error, outcome.failure, outcome)
    hopeless = not outcomes.is_doubted(operation, outcome, confirm.outcome) and (
        outcome.kind in ("rejected", "late") or not outcome.retryable
    )
    if outcome.park_reason is not None or (hopeless and not outcome.not_started) or entry.decision is not None:
        run.park(entry, "confirm", outcome.park_reason or failure_reasons.failure_message(entry, "confirm"))
        return
    if not run.retrying_recorded:
        run.retrying_recorded = True
        run.emit(RecordState("COMMITTED", entry.id, None))
    summary = f"retry ✔ confirm {run.step(entry).name}"
    wait = retries.longest_interval(operation.retry, outcome)
    if is_repeated:
        wait = outcome.retry_after or backoff(operation.retry, confirm.min_attempts)
    run.start_flight(f"{entry.id}~confirm-retry", "timer", entry, "confirm", seconds=wait, summary=summary)


def mark_confirmed(run: SagaRun, entry: Entry) -> None:
    confirm = entry.confirm
    assert confirm is not None
    entry.state, confirm.state, confirm.ended_at, confirm.error = "CONFIRMED", "DONE", run.now, None
    confirm.arguments = None
    entry.decision = None
    run.post(ConfirmSettled(entry))


def continue_after_confirm(run: SagaRun, entry: Entry) -> None:
    """Continue after a confirm with the dependants' confirms, or, past the pivot, with the dependants themselves."""
    if run.plan.runs_after_commit(entry.step):
        run.post(EntrySettled(entry, True))
        return
    record = run.record(entry)
    record.confirms_running -= 1
    confirm_step(run, record)


def _finish_forward(run: SagaRun) -> None:
    """All steps and confirms are done: evaluate `output`, or park at the pseudo-step of that name if that fails."""
    if OUTPUT_STEP in run.parked:
        return
    if run.definition.output is not None and run.output is None and run.finished_by is None:
        try:
            run.output = expression_fields.evaluate_output(run)
        except DefinitionError as error:
            run.parked[OUTPUT_STEP] = ParkedOperation(OUTPUT_STEP, "do", run.now, str(error))
            return
    finish(run, completed=True)
