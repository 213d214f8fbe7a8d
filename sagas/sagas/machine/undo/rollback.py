"""Rollback: what starts it, in which order steps are compensated, single undos (rule 3), and how it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.definition.model import backoff, is_nested, is_read
from sagas.machine import (
    attempt_counts,
    builtin_actions,
    calls,
    commit,
    failure_reasons,
    retries,
    standing_pauses,
)
from sagas.machine.compensations import current_alternate, is_always_undone
from sagas.machine.earlier import known_steps, unknown_steps
from sagas.machine.earlier.doubts import believed_promises, count_earlier_run
from sagas.machine.earlier.resets import park_instead
from sagas.machine.entry_ends import leave_to_rollback, mark_nothing_to_undo
from sagas.machine.finish import finish
from sagas.machine.internal_events import (
    CarryOutDecision,
    CompensateEntry,
    CompensateStep,
    CompensationSettled,
    LookUpEffect,
)
from sagas.machine.locking import locks
from sagas.machine.parked_rows import rows_left_to
from sagas.machine.state import FORWARD_CALLS, Entry, Flight, LookupPurpose, OperationState, SagaRun
from sagas.machine.undo import given_up_pivot, savepoints
from sagas.protocol.outcomes import Outcome

_ASKED_AGAIN: tuple[LookupPurpose, ...] = ("retry", "end", "continue", "skip", "again")
"""Purposes of a probe that a rollback ends: it probes again when it comes to the step."""


def request_rollback(run: SagaRun, cause: Mapping[str, Any], entry: Entry | None = None) -> None:
    """Start a rollback. While the pivot is undecided the request is only recorded (rule 5)."""
    if run.earlier.pivot_in_place:
        if entry is not None:
            park_instead(run, entry)
        return
    if run.phase == "backward" and run.savepoint is not None and cause.get("step") is None:
        savepoints.give_up(run)
        run.reason = dict(cause)  # the failure only led back to the savepoint
    if run.finished or run.phase == "backward":
        return
    if run.committed:
        if entry is not None:
            run.park(entry, "do", failure_reasons.failure_message(entry, "do"))
        return
    pivot = commit.undecided_pivot(run)
    if pivot is None and not unknown_steps.must_find_pivot(run):
        start_rollback(run, cause)
        return
    if run.pending_cause is None:
        run.pending_cause = dict(cause)
    if entry is not None:
        run.pending_entries.append(entry.id)
    if pivot is not None:
        commit.stop_pivot_attempts(run, pivot)


def _start_after_search(run: SagaRun) -> None:
    """Search for a pivot ahead of this run, for which a rollback waits; start the rollback if none was made."""
    if unknown_steps.is_seeking(run) and not unknown_steps.seek_pivot(run):
        assert run.pending_cause is not None
        start_rollback(run, run.pending_cause)


def continue_after_pivot_failure(run: SagaRun, entry: Entry, cause: Mapping[str, Any]) -> None:
    """The pivot will never happen: start the rollback with the first recorded cause."""
    if run.earlier.pivot_in_place:
        park_instead(run, entry)
        return
    # A person may decide about an unknown one much later than its last attempt ended.
    last = entry.last_attempt_ended_at if entry.outcome == "unknown" else None
    entry.ended_at = entry.ended_at or last or run.now
    if entry.state in ("RUNNING", "PARKED"):
        leave_to_rollback(run, entry)
    entry.resolved = True
    first, run.pending_cause = run.pending_cause or cause, None
    start_rollback(run, first)


def start_rollback(run: SagaRun, cause: Mapping[str, Any]) -> None:
    """Enter the rollback. Compensations wait until every attempt in flight has settled (rule 2)."""
    builtin_actions.forget_finish(run)
    run.phase = "backward"
    run.savepoint = savepoints.savepoint_for(run, cause)
    run.reason = dict(cause)
    run.pending_cause = None
    run.change_state("COMPENSATING", cause.get("step"))
    if run.savepoint is None:
        run.cancel_timer("deadline")
        run.deadline_at = None
        locks.stop_waiting(run)
    known_steps.take_over(run)
    for parked in list(run.parked.values()):
        if parked.op == "do":
            entry = run.entry(parked.step)
            del run.parked[parked.step]
            if entry is not None:
                leave_to_rollback(run, entry)
    for flight in list(run.flights.values()):
        if flight.call_kind in FORWARD_CALLS:
            _stop_flight(run, flight)


def _stop_flight(run: SagaRun, flight: Flight) -> None:
    entry = run.entry(flight.entry)
    if entry is None:
        return
    if flight.kind == "call":
        if flight.call_kind == "do" or (flight.call_kind == "probe" and flight.purpose in _ASKED_AGAIN):
            run.cancel_call(flight)
    elif flight.kind == "saga":
        if not flight.cancelled:
            flight.cancelled = True
            message = str((run.reason or {}).get("message") or "the parent saga is rolled back")
            run.emit(builtin_actions.cancel_command(run, entry, message))
    elif flight.call_kind == "write":
        return  # an operator's `done` is being recorded: the effect is undone once the guard has it
    else:
        run.end_timer_flight(flight)
        if flight.kind == "wait":
            entry.outcome, entry.failure_kind = "failed", "failed"
            entry.error = {"type": "Cancelled", "message": "the saga was rolled back", "details": {}}
        leave_to_rollback(run, entry)


def start_compensating(run: SagaRun) -> None:
    """Start compensations once no forward call is in flight, and the steps ahead of this run are looked up."""
    _start_after_search(run)
    if run.phase != "backward" or run.compensating or run.forward_busy or run.finished or locks.hold_back_undo(run):
        return
    if unknown_steps.look_up_next(run, savepoints.covered_steps(run)):
        return
    run.compensating = True
    undone = [id for id in reversed(run.plan.steps) if savepoints.rollback_covers(run, id)]
    run.compensations_open = len(undone)
    for id in undone:
        run.steps[id].dependants_open = len(run.plan.dependants[id])
    for id in undone:
        if run.steps[id].dependants_open == 0:
            run.post(CompensateStep(id))


def compensate_step(run: SagaRun, id: str) -> None:
    """Compensate the entries of a step whose dependants are all closed, the last item first; then release its needs."""
    record = run.steps[id]
    if record.undo_closed:
        return
    if record.undo_cursor is None:
        record.undo_cursor = len(record.entries) - 1
    while record.undo_cursor >= 0:
        entry = record.entries[record.undo_cursor]
        if _is_compensating(entry):
            return  # `on_failure: continue` has started its compensation, which is not finished
        if needs_compensation(run, entry):
            if entry.outcome == "unknown" and not entry.looked_up:
                entry.looked_up = True
                run.post(LookUpEffect(entry, "backward"))
            else:
                run.post(CompensateEntry(entry))
            return
        if savepoints.must_seal(run, entry):
            entry.looked_up = True
            run.post(LookUpEffect(entry, "backward"))
            return
        if entry.resolved and entry.state == "DONE" and entry.undo is not None:
            mark_nothing_to_undo(entry)  # an empty for_each
        record.undo_cursor -= 1
    record.undo_closed = True
    run.compensations_open -= 1
    for need in reversed(run.plan.steps[id].needs):
        other = run.steps[need]
        other.dependants_open -= 1
        if other.dependants_open == 0 and savepoints.rollback_covers(run, need):
            run.post(CompensateStep(need))


def _is_compensating(entry: Entry) -> bool:
    return entry.undo is not None and entry.undo.state in ("RUNNING", "PARKED")


def needs_compensation(run: SagaRun, entry: Entry) -> bool:
    """True for DONE and unresolved UNKNOWN entries that have not been compensated."""
    state = entry.undo.state if entry.undo is not None else None
    if is_always_undone(run, entry):
        return entry.outcome != "late" and state not in ("DONE", "SKIPPED")
    if entry.resolved or entry.outcome not in ("done", "unknown"):
        return False
    if state in ("DONE", "NOTHING_TO_UNDO", "SKIPPED"):
        return False
    step = run.step(entry)
    return step.compensate is not None or is_nested(step)


def compensate_after_lookup(run: SagaRun, entry: Entry, verdict: str) -> None:
    """Continue with an UNKNOWN entry in the rollback after the lookup of its effect."""
    if verdict in ("done", "unknown"):
        # An operator may have decided in the meantime how to undo it.
        run.post(CompensateEntry(entry) if entry.decision is None else CarryOutDecision(entry, entry.decision))
    else:
        run.post(CompensationSettled(entry))


def finish_when_compensated(run: SagaRun) -> None:
    if not run.compensating or run.compensations_open:
        return
    if run.savepoint is not None:
        savepoints.run_again_after_wait(run)
    elif not given_up_pivot.is_asked(run):
        finish(run, completed=False)


def compensate_entry(run: SagaRun, entry: Entry) -> None:
    """Compensate an entry that is done or may be done."""
    step = run.step(entry)
    if entry.undo is None:
        entry.undo = OperationState()
    undo = entry.undo
    entry.state, undo.state = "COMPENSATING", "RUNNING"
    if undo.started_at is None:
        undo.started_at = run.now
    if is_nested(step) and step.compensate is None:
        if entry.id not in run.children:
            run.park(entry, "undo", _why_not_undone(run, entry))
            return
        command = builtin_actions.undo_command(run, entry)
        run.start_flight(command.id, "saga", entry, "undo")
        run.emit(command)
        return
    confirmed = entry.confirm is not None and entry.confirm.state == "DONE"
    if confirmed and step.compensate is not None and step.compensate.confirmed is not None and not step.do.guarded:
        undo.undoes_confirmed = True
    _send_undo(run, entry)


def _why_not_undone(run: SagaRun, entry: Entry) -> str:
    if not entry.ahead:
        return "no nested saga ran here: what an operator did instead only an operator can undo"
    child = builtin_actions.child_saga_id(run, entry)
    return (
        f"an earlier run has started the nested saga {child}, whose run was deleted, and no guard knows which saga it "
        "is: undo by hand what it has done, then decide `done`"
    )


def _send_undo(run: SagaRun, entry: Entry) -> None:
    step, undo = run.step(entry), entry.undo
    assert undo is not None
    count_earlier_run(run, undo, current_alternate(step, undo))
    mark = calls.guard_decides_first(step, current_alternate(step, undo)) and not undo.guard_decided
    calls.send_or_park(run, entry, "undo", "undo-mark" if mark else "undo", undo)


def undo_mark_ended(run: SagaRun, entry: Entry, outcome: Outcome) -> None:
    """Handle the decision of the step's guard about an undo whose action runs on another connection."""
    undo = entry.undo
    assert undo is not None
    if outcome.kind != "done" or outcome.marker == "unknown_effect":
        _handle_guard_failure(run, entry, outcome)
    elif outcome.marker == "elsewhere":
        undo.guard_decided, undo.arguments = True, None
        if entry.decision is None:
            _send_undo(run, entry)
        else:
            run.park(entry, "undo", "an operator has decided about it")  # the decision is carried out by the caller
    else:
        undo_ended(run, entry, outcome, None, counted=False)


def _confirmed_undo_is_elsewhere(run: SagaRun, entry: Entry) -> bool:
    step = run.step(entry)
    operation = step.compensate.confirmed if step.compensate else None
    return operation is not None and operation.connection != step.do.connection


def _handle_guard_failure(run: SagaRun, entry: Entry, outcome: Outcome) -> None:
    undo = entry.undo
    assert undo is not None
    if outcome.failure is not None:
        undo.error = standing_pauses.failure_json(undo.error, outcome.failure, outcome)
    hopeless = outcome.kind in ("rejected", "late") or (not outcome.retryable and not outcome.infrastructure)
    if outcome.marker == "unknown_effect":
        run.park(entry, "undo", failure_reasons.NO_GUARD_ROW)
    elif outcome.park_reason is not None or hopeless:
        run.park(entry, "undo", outcome.park_reason or failure_reasons.failure_message(entry, "undo"))
    else:
        # The mark has no effect of its own, so it is retried without limit.
        _schedule_undo(run, entry, retries.longest_interval(run.step(entry).do.retry, outcome))


def undo_ended(run: SagaRun, entry: Entry, outcome: Outcome, attempts: int | None, *, counted: bool = True) -> None:
    """Handle the end of an undo."""
    undo, step = entry.undo, run.step(entry)
    assert undo is not None
    if counted:
        operation = step.do if step.compensate is None else current_alternate(step, undo)
        believed = believed_promises(run, operation, outcome)
        attempt_counts.end_operation_call(undo, believed, outcome, attempts)
    if outcome.kind != "done" and outcome.failure is not None:
        undo.error = standing_pauses.failure_json(undo.error, outcome.failure, outcome)
    if outcome.marker == "unknown_effect":
        run.park(entry, "undo", failure_reasons.NO_GUARD_ROW)
    elif outcome.kind == "done":
        _undo_done(run, entry, outcome)
    elif outcome.park_reason is not None:
        run.park(entry, "undo", outcome.park_reason)
    elif outcome.kind == "late":
        run.park(entry, "undo", "the guard refuses this undo, because it is too late")
    elif entry.decision is not None:
        # The caller carries the decision out.
        run.park(entry, "undo", failure_reasons.failure_message(entry, "undo"))
    elif is_nested(step) and step.compensate is None:
        run.park(entry, "undo", failure_reasons.failure_message(entry, "undo"))
    else:
        _undo_failed(run, entry, outcome)


def _undo_done(run: SagaRun, entry: Entry, outcome: Outcome) -> None:
    undo = entry.undo
    assert undo is not None
    if outcome.marker == "confirmed" and not undo.undoes_confirmed and _confirmed_undo_is_elsewhere(run, entry):
        undo.guard_decided, undo.undoes_confirmed, undo.arguments, undo.override = True, True, None, None
        undo.as_written = False
        _send_undo(run, entry)
        return
    if outcome.marker == "confirmed":
        run.park(entry, "undo", "the step is confirmed, and nothing undoes a confirmed effect (compensate.confirmed)")
        return
    if outcome.marker == "nothing_to_undo" and is_always_undone(run, entry) and not undo.guard_decided:
        # The step never happens any more; the action has a row of its own, and none of its attempts was made.
        undo.guard_decided, undo.outcome, undo.min_attempts, undo.retry_baseline = True, None, 0, 0
        _send_undo(run, entry)
        return
    undo.ended_at, undo.error, undo.arguments, undo.override = run.now, None, None, None
    entry.ended_at = entry.ended_at or run.now  # when its call ended; the compensation has its own
    if outcome.marker == "nothing_to_undo":
        mark_nothing_to_undo(entry)
        entry.resolved = True
    else:
        entry.state, undo.state = "COMPENSATED", "DONE"
        undo.left_to = [] if undo.undoes_confirmed else rows_left_to(run.step(entry), outcome)
    entry.decision = None
    run.post(CompensationSettled(entry))


def _undo_failed(run: SagaRun, entry: Entry, outcome: Outcome) -> None:
    step, undo = run.step(entry), entry.undo
    assert undo is not None
    operation = current_alternate(step, undo)
    if outcome.not_started:
        _schedule_undo(run, entry, operation.retry.max_interval)
        return
    if outcome.kind != "rejected" and not outcome.retryable:
        # Rule 10: invalid arguments are a bug that no alternate fixes; an operator has to.
        run.park(entry, "undo", failure_reasons.failure_message(entry, "undo"))
        return
    if outcome.infrastructure or not outcome.counted or not outcome.charged:
        _schedule_undo(run, entry, retries.longest_interval(operation.retry, outcome))
        return
    if undo.outcome in ("rejected", "failed"):
        if not undo.undoes_confirmed and step.compensate and undo.alternate + 1 < len(step.compensate.alternates):
            undo.alternate += 1
            undo.outcome, undo.min_attempts, undo.retry_baseline = None, 0, 0
            undo.arguments, undo.override, undo.as_written = None, None, False
            _send_undo(run, entry)
        else:
            run.park(entry, "undo", failure_reasons.failure_message(entry, "undo"))
    elif undo.min_attempts - undo.retry_baseline < operation.retry.max_attempts:
        asked = None if operation.local else outcome.retry_after
        _schedule_undo(run, entry, asked or backoff(operation.retry, undo.min_attempts))
    else:
        run.park(entry, "undo", failure_reasons.failure_message(entry, "undo"))


def _schedule_undo(run: SagaRun, entry: Entry, seconds: float) -> None:
    name = run.step(entry).name
    run.start_flight(f"{entry.id}~undo-retry", "timer", entry, "undo", seconds=seconds, summary=f"retry ↩ undo {name}")


def retry_undo(run: SagaRun, entry: Entry) -> None:
    """Retry an undo after its timer has fired."""
    if entry.undo is not None:
        entry.state, entry.undo.state = "COMPENSATING", "RUNNING"
    _send_undo(run, entry)


def undo_refusal(run: SagaRun) -> str | None:
    """Rule 15: None for a completed saga without a pivot whose done steps, confirmed ones too, can be undone.

    Otherwise why it cannot be undone, as the end of a sentence.
    """
    if run.undoing_finished:
        return "an undo of it has begun"
    if run.state != "COMPLETED":
        return f"it is {run.state}, and only a COMPLETED saga can be undone"
    if run.plan.forward_only:
        return "it has `recovery: forward`, so no step has a compensation"
    if run.plan.pivot is not None and not run.is_cut_off(run.plan.pivot.id):
        return f"its pivot {run.plan.pivot.id} is done, which is its point of no return"
    for record in run.steps.values():
        step = run.plan.steps[record.id]
        for entry in record.entries:
            if entry.outcome != "done" or entry.failure_ignored or is_read(step):
                continue
            if step.compensate is None and not is_nested(step):
                return f"{entry.id} is done and has no `compensate`"
            confirmed = entry.confirm is not None and entry.confirm.state == "DONE"
            if confirmed and (step.compensate is None or step.compensate.confirmed is None):
                return f"{entry.id} is confirmed and has no `compensate.confirmed`"
    return None
