"""Applies operators' decisions about operations to the state of the saga."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.builtins.automatic import RESTORE
from sagas.definition.call_arguments import replaced_arguments
from sagas.definition.model import is_nested, is_read
from sagas.definition.snapshot import from_snapshot
from sagas.machine import (
    attempt_counts,
    builtin_actions,
    calls,
    commit,
    corrections,
    failure_reasons,
    forward,
    residue,
    result_rooms,
    retries,
)
from sagas.machine.compensations import current_alternate
from sagas.machine.corrected_probes import probe_of
from sagas.machine.decisions.rules import current_operation, decided_operation
from sagas.machine.entry_ends import STATE_BY_OUTCOME, leave_to_rollback
from sagas.machine.expressions import arguments
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.finish import finish
from sagas.machine.internal_events import (
    CarryOutDecision,
    CompensateEntry,
    CompensationSettled,
    ConfirmEntry,
    ConfirmSettled,
    EntrySettled,
    LookUpEffect,
    PivotFailed,
    RequestRollback,
    StartAttempt,
)
from sagas.machine.operator_record import note_decision
from sagas.machine.parked_outputs import closed_outputs
from sagas.machine.state import OUTPUT_STEP, Entry, LookupPurpose, OperationState, SagaRun
from sagas.machine.unclosed_skips import NOT_RECORDED, is_unclosed
from sagas.protocol.messages import DecisionMade
from sagas.protocol.outcomes import Outcome
from sagas.protocol.saga_view import EntryOperation


def receive_decision(run: SagaRun, event: DecisionMade) -> None:
    """Record an accepted decision and carry it out as soon as nothing of the operation is in flight."""
    row = note_decision(run, event, closed_outputs(run, event))
    if event.definition is not None:
        run.replace_definition(from_snapshot(event.definition))
    if event.step == OUTPUT_STEP:
        del run.parked[OUTPUT_STEP]
        if event.decision == "done":
            run.output = event.result
            finish(run, completed=True)
        return
    entry = run.entry(event.step)
    if entry is None:
        return
    op = current_operation(run, entry)
    decision = {**row, "arguments": event.arguments, "result": event.result, "op": op}
    flight = run.flights.get(entry.flight) if entry.flight else None
    if flight is not None and flight.kind == "call":
        # The attempt in flight may still succeed, which then overrides the decision.
        entry.decision = {**decision, "newer": True} if flight.call_kind == "skip" else decision
        if flight.background:
            # The probe of a parked pivot: the decision waits for it, so it is no longer in the background.
            run.bring_to_foreground(flight)
            run.unpark(entry)
        run.cancel_call(flight)
        return
    if flight is not None:
        run.end_timer_flight(flight)
    run.post(CarryOutDecision(entry, decision))


def carry_out(run: SagaRun, entry: Entry, decision: Mapping[str, Any]) -> None:
    """Carry out a decision about an entry that is no longer in flight."""
    parked = run.unpark(entry)
    op: EntryOperation = parked.op if parked else decision.get("op") or current_operation(run, entry)
    entry.decision = dict(decision)
    if op == "do":
        _carry_out_forward(run, entry, decision)
    elif op == "confirm":
        _carry_out_confirm(run, entry, decision)
    else:
        _carry_out_undo(run, entry, decision)


def _carry_out_forward(run: SagaRun, entry: Entry, decision: Mapping[str, Any]) -> None:
    step = run.step(entry)
    guarded = step.do.guarded and not is_read(step) and not is_nested(step)
    match decision["decision"]:
        case "retry":
            _retry_forward(run, entry, decision, guarded)
        case "done" if guarded:
            calls.send_call(run, entry, "write")
        case "done":
            forward.mark_done(run, entry, decision.get("result"))
        case "skip" if guarded:
            entry.resolved = False
            run.post(LookUpEffect(entry, "skip"))
        case "skip":
            skip_entry(run, entry)
        case "compensate" if step.pivot and (guarded or probe_of(run, entry) is not None):
            run.post(LookUpEffect(entry, "compensate"))
        case "compensate" if step.pivot:
            give_up_pivot(run, entry)
        case _:
            leave_to_rollback(run, entry)
            run.record(entry).stopped = True
            entry.decision = None
            run.post(EntrySettled(entry, False))
            run.post(RequestRollback(operator_cause(entry, decision), entry))


def _retry_forward(run: SagaRun, entry: Entry, decision: Mapping[str, Any], guarded: bool) -> None:
    record = run.record(entry)
    step = run.step(entry)
    unsure = entry.outcome == "unknown" and not entry.resolved
    # Without a guard an unknown attempt is repeated with the arguments that were sent.
    may_change = not unsure or step.do.guarded or is_read(step)
    changed = may_change and _correct_arguments(run, entry, "do", entry, decision)
    if entry.index is None and (step.for_each is not None or not entry.started_at):
        entry.decision = None
        forward.restart_step(run, record)
        return
    if step.do.uses == "wait":
        builtin_actions.forget_rejection(run, entry)
    never = entry.min_attempts == 0
    same_key = never or (unsure and not changed)
    if same_key:
        if never:
            entry.arguments = None
        entry.decision = None
        entry.probe_rounds, entry.retry_baseline, entry.retry_baseline_at = 0, entry.min_attempts, run.now
        if guarded and step.pivot and run.pending_cause is not None:
            # Rule 5: a cancel or the deadline is recorded, so no attempt may start; only the guard's row decides.
            run.post(LookUpEffect(entry, "pivot"))
        elif not never and retries.is_single_attempt(step):
            # The participant does not honour the key: it is called again only after a probe returns absent.
            run.post(LookUpEffect(entry, "pivot" if step.pivot and run.phase == "forward" else "retry"))
        else:
            run.post(StartAttempt(entry))
    elif guarded and not entry.resolved:
        run.post(LookUpEffect(entry, "again"))
    else:
        start_next_generation(run, entry)


def _new_arguments(
    run: SagaRun, entry: Entry, op: EntryOperation, decision: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The arguments that the operator gave, in place of those of the operation; None if it keeps its own."""
    new, operation = decision.get("arguments"), decided_operation(run, entry, op)
    if new is None or operation is None:
        return new
    return replaced_arguments(operation.uses, new, arguments.sent_arguments(entry, op, operation))


def _correct_arguments(
    run: SagaRun,
    entry: Entry,
    op: EntryOperation,
    operation: Entry | OperationState,
    decision: Mapping[str, Any],
) -> bool:
    """Let the latest correction apply: new arguments, or a definition, which withdraws those of an earlier retry.

    False when the decision brings no correction.
    """
    corrected = decision.get("arguments") is not None or "definition" in decision
    if corrected:
        operation.override = _new_arguments(run, entry, op, decision)
    return corrected


def start_next_generation(run: SagaRun, entry: Entry) -> None:
    """Run the entry again under a new key: the old one is finally rejected, failed or sealed."""
    if run.pending_cause is not None and run.step(entry).pivot:
        # A cancel or the deadline was recorded while the seal was in flight, so no attempt may start.
        entry.decision = None
        run.post(PivotFailed(entry, failure_reasons.failure_cause(entry)))
        return
    result_rooms.give_back(run, entry)
    entry.generation += 1
    entry.outcome = entry.failure_kind = entry.error = entry.arguments = None
    entry.resolved, entry.looked_up, entry.min_attempts, entry.probe_rounds = False, False, 0, 0
    entry.ended_at, entry.decision = None, None
    entry.undo = entry.confirm = None
    run.post(StartAttempt(entry))


def _carry_out_undo(run: SagaRun, entry: Entry, decision: Mapping[str, Any]) -> None:
    undo, step = entry.undo, run.step(entry)
    if undo is None:
        return
    match decision["decision"]:
        case "retry":
            if _correct_arguments(run, entry, "undo", undo, decision) or undo.override is None:
                undo.arguments = None
            undo.as_written = undo.as_written or corrections.is_open(run, entry, "undo")
            undo.retry_baseline, entry.decision = undo.min_attempts, None
            if not run.compensating and run.phase == "backward" and undo.started_at is None:
                return  # the rollback begins with it in its order
            if entry.outcome == "unknown" and not entry.resolved and entry.looked_up and undo.started_at is None:
                run.post(LookUpEffect(entry, "backward"))
            else:
                run.post(CompensateEntry(entry))
        case "done":
            own = step.compensate is not None and current_alternate(step, undo).guarded
            nested = builtin_actions.has_nested_undo(run, entry)
            if own or nested or (step.do.guarded and not undo.guard_decided):
                entry.state, undo.state = "COMPENSATING", "RUNNING"
                calls.send_call(run, entry, "write", "backward")
            else:
                mark_compensated_manually(run, entry)
        case _ if _keeps_images(run, entry, undo) and not is_unclosed(entry):
            entry.state, undo.state = "COMPENSATING", "RUNNING"
            calls.send_call(run, entry, "skip")
        case _:
            _skip_undo(run, entry, undo)


def _keeps_images(run: SagaRun, entry: Entry, undo: OperationState) -> bool:
    """True for an automatic undo, and for that of a nested saga, whose images other undos may rely on."""
    step = run.step(entry)
    restores = step.compensate is not None and current_alternate(step, undo).uses == RESTORE
    return restores or builtin_actions.has_nested_undo(run, entry)


def _skip_undo(run: SagaRun, entry: Entry, undo: OperationState) -> None:
    undo.state, undo.ended_at = "SKIPPED", run.now
    entry.state = STATE_BY_OUTCOME[entry.outcome or "unknown"]
    entry.decision = None
    residue.add_residue(run, entry, "effect_stays", "undo")
    run.post(CompensationSettled(entry))


def _carry_out_confirm(run: SagaRun, entry: Entry, decision: Mapping[str, Any]) -> None:
    confirm, step = entry.confirm, run.step(entry)
    if confirm is None or step.confirm is None:
        return
    match decision["decision"]:
        case "retry":
            if _correct_arguments(run, entry, "confirm", confirm, decision) or confirm.override is None:
                confirm.arguments = None
            confirm.as_written = confirm.as_written or corrections.is_open(run, entry, "confirm")
            entry.decision = None
            run.post(ConfirmEntry(entry))
        case "done" if step.confirm.guarded or (step.do.guarded and not confirm.guard_decided):
            calls.send_call(run, entry, "write", "not_done")
        case "done":
            commit.mark_confirmed(run, entry)
        case _:
            confirm.state, confirm.ended_at = "SKIPPED", run.now
            entry.state, entry.decision = "DONE", None
            residue.add_residue(run, entry, "effect_missing", "confirm")
            run.post(ConfirmSettled(entry))


def skip_recorded(run: SagaRun, entry: Entry, outcome: Outcome) -> None:
    """Skip an automatic compensation, or those of a nested saga, with the rows as the images describe them now.

    An attempt to undo that has succeeded overrides the decision. It is recorded as soon as the database answers, so
    that no other undo relies on the images meanwhile; a further `skip` does not wait for that.
    """
    undo, step = entry.undo, run.step(entry)
    assert undo is not None
    if outcome.kind == "done" and outcome.marker != "skipped":
        entry.resolved = entry.resolved or outcome.marker == "nothing_to_undo"
        mark_compensated_manually(run, entry)
        return
    if outcome.kind == "done":
        undo.error = {"type": "Skipped", "message": "skipped by an operator", "details": {}, **(undo.error or {})}
        undo.error["details"] = outcome.result or {}
        _skip_undo(run, entry, undo)
        return
    said = outcome.park_reason or (outcome.failure.message if outcome.failure else outcome.kind)
    undo.error = {"type": NOT_RECORDED, "message": said, "details": {}}
    if entry.decision is not None and entry.decision.get("newer"):
        run.post(CarryOutDecision(entry, entry.decision))
    elif outcome.retryable and outcome.park_reason is None:
        summary = f"retry ✎ undo {step.name}: skipped by an operator"
        wait = retries.longest_interval(step.do.retry, outcome)
        run.start_flight(f"{entry.id}~skip-retry", "timer", entry, "skip", seconds=wait, summary=summary)
    else:
        entry.decision = None
        run.park(entry, "undo", f"the decision cannot be recorded: {said}")


def park_again(run: SagaRun, entry: Entry, error: DefinitionError) -> None:
    """Park the operation again: the arguments for its decision cannot be evaluated."""
    op = current_operation(run, entry)
    entry.decision = None
    run.park(entry, op, str(error))


def skip_entry(run: SagaRun, entry: Entry) -> None:
    """Skip the step. Its missing effect is recorded as residue past the commit point, and so is one before it that may
    be there, because nothing has sealed it.
    """
    unclear = entry.outcome == "unknown" and not entry.resolved and not is_read(run.step(entry))
    entry.state, entry.result, entry.ended_at, entry.decision = "SKIPPED", None, run.now, None
    entry.failure_ignored = True
    if run.committed or unclear:
        residue.add_residue(run, entry, "effect_missing", "do")
    run.post(EntrySettled(entry, True))


def give_up_pivot(run: SagaRun, entry: Entry) -> None:
    """Give up the pivot: it is sealed, or an operator vouches that it did not happen."""
    cause = operator_cause(entry, entry.decision or {})
    entry.decision = None
    run.post(PivotFailed(entry, cause))


def operator_cause(entry: Entry, decision: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": "operator",
        "step": entry.id,
        "type": "Operator",
        "message": decision.get("reason") or "an operator decided to roll back",
        "details": {"who": decision.get("who")},
    }


def mark_compensated_manually(run: SagaRun, entry: Entry) -> None:
    undo = entry.undo
    assert undo is not None
    entry.state, undo.state, undo.ended_at, undo.error = "COMPENSATED", "DONE", run.now, None
    entry.decision = None
    run.post(CompensationSettled(entry))


def manual_result_ended(
    run: SagaRun, entry: Entry, outcome: Outcome, purpose: LookupPurpose, attempts: int | None
) -> None:
    """Handle the end of recording an operator's `done` in the guard.

    An existing row overrides the decision; a retryable error of the guard is retried without limit.
    """
    op: EntryOperation = "undo" if purpose == "backward" else "confirm" if purpose == "not_done" else "do"
    step = run.step(entry)
    counted = {"do": entry, "undo": entry.undo, "confirm": entry.confirm}[op]
    assert counted is not None
    attempt_counts.count_attempts(counted, outcome, attempts, step.do.retry)
    if outcome.kind == "done" and outcome.marker not in ("unknown_effect", "confirmed"):
        if op == "do":
            entry.last_attempt_ended_at = run.now
            forward.mark_done(run, entry, outcome.result)
        elif op == "confirm":
            commit.mark_confirmed(run, entry)
        else:
            if outcome.marker == "nothing_to_undo":
                entry.resolved = True
            mark_compensated_manually(run, entry)
    elif outcome.kind in ("unknown", "failed") and outcome.retryable and outcome.park_reason is None:
        summary = f"retry ✎ {step.name}: done, recorded by an operator"
        wait = step.do.retry.max_interval
        run.start_flight(f"{entry.id}~write-retry", "timer", entry, "write", purpose, seconds=wait, summary=summary)
    elif op == "do" and run.phase == "backward":
        entry.decision = None
        leave_to_rollback(run, entry)
    else:
        entry.decision = None
        if op == "undo" and outcome.failure is not None and outcome.failure.details:
            counted.error = outcome.failure.to_json()
        said = outcome.park_reason or (outcome.failure.message if outcome.failure else outcome.marker or outcome.kind)
        run.park(entry, op, f"the guard refused the decision: {said}")
